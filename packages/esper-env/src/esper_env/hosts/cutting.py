"""Cutting a traced module at its slots: what stands before, between and after them, as a `Network`."""

from collections.abc import Sequence

from torch import fx, nn

from esper_env.hosts.base import Network


class _Tracer(fx.Tracer):
    """Looks only into modules that contain a slot: whatever else they do stays as it is."""

    def __init__(self, slots: Sequence[str]) -> None:
        super().__init__()
        self.slots = slots

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002 (torch's names)
        return not any(slot.startswith(f"{module_qualified_name}.") for slot in self.slots)


def cut(model: nn.Module, slots: Sequence[str]) -> Network:
    """The model as a network whose blocks are the slots, in the order of their calls.

    Raises:
        ValueError: if it cannot be traced, or if anything passes by a slot.
    """
    _check_ties(model)
    graph = _traced(model, slots)
    (entry, *more) = (node for node in graph.nodes if node.op == "placeholder")
    if more:
        raise ValueError(f"the model's forward takes {1 + len(more)} inputs; allowed: one")
    calls = [next(node for node in graph.nodes if node.op == "call_module" and node.target == s) for s in slots]
    exits = [*(call.args[0] for call in calls), _answer(graph)]
    parts = [_part(model, start, end) for start, end in zip([entry, *calls], exits, strict=True)]
    _check_shared([*parts, *(model.get_submodule(slot) for slot in slots)])
    enter, *bridges, head = parts
    return Network([model.get_submodule(slot) for slot in slots], head, enter, [*bridges, nn.Identity()])


def _traced(model: nn.Module, slots: Sequence[str]) -> fx.Graph:
    try:
        return _Tracer(slots).trace(model)
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"torch.fx cannot trace {type(model).__name__} around its slots ({reason}); "
            "allowed: no control flow on values; a submodule without slots may do as it likes"
        ) from error


def _answer(graph: fx.Graph) -> fx.Node:
    (output,) = (node for node in graph.nodes if node.op == "output")
    if not isinstance(output.args[0], fx.Node):
        raise ValueError(f"the model's forward gives {output.args[0]}; allowed: one tensor of logits")
    return output.args[0]


def _part(model: nn.Module, start: fx.Node, end: fx.Node) -> nn.Module:
    """All that leads from one node of the trace to another."""
    if start is end:
        return nn.Identity()
    needed = _needed(start, end)
    graph = fx.Graph()
    copies = {start: graph.placeholder("x")}
    for node in start.graph.nodes:
        if node in needed:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(copies[end])
    return fx.GraphModule(model, graph)


def _needed(start: fx.Node, end: fx.Node) -> set[fx.Node]:
    """The nodes between start and end, none of which may read what start was made from."""
    before = {node for node in _ancestors(start) if any(n.op == "placeholder" for n in (node, *_ancestors(node)))}
    needed: set[fx.Node] = set()
    waiting = [end]
    while waiting:
        node = waiting.pop()
        if node in before:
            raise ValueError(
                f"{node.name!r} passes by slot {start.target!r}; allowed: after a slot only its output is used, "
                "so a skip connection lies inside a slot or between two"
            )
        if node is not start and node not in needed:
            needed.add(node)
            waiting += node.all_input_nodes
    return needed


def _ancestors(node: fx.Node) -> set[fx.Node]:
    found: set[fx.Node] = set()
    waiting = [node]
    while waiting:
        fresh = [n for n in waiting.pop().all_input_nodes if n not in found]
        found.update(fresh)
        waiting += fresh
    return found


def _check_ties(model: nn.Module) -> None:
    seen: dict[int, str] = {}
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            full = f"{path}.{name}".lstrip(".")
            if seen.setdefault(id(parameter), full) != full:
                raise ValueError(f"{full!r} and {seen[id(parameter)]!r} are one parameter; allowed: no tied parameters")


def _check_shared(parts: Sequence[nn.Module]) -> None:
    owners: dict[int, int] = {}
    for number, part in enumerate(parts):
        for name, parameter in part.named_parameters():
            if owners.setdefault(id(parameter), number) != number:
                raise ValueError(f"{name!r} is used before a slot and after it; allowed: modules used in one place")
