"""The report of a run: complete, self-contained, true to what was recorded and played, and readable on a phone."""

import itertools
import json
import math
import shutil
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import plotly.graph_objects
import pytest
from browser import CHROMIUM, Browser
from esper_agent import cli
from esper_agent.algorithm.checkpoint import load_checkpoint, save_checkpoint
from esper_agent.baselines.scripted import GrowEverything, NeverGrow, RandomLegal
from esper_agent.comparison.run import EVALUATION_SEED
from esper_agent.evaluation.paired import make_test_env, play
from esper_agent.evaluation.recording import Course, Recorder
from esper_agent.report import colors, page
from esper_agent.report.build import facts
from esper_agent.report.chart import Chart, Note
from esper_agent.report.episode_chart import BAR, episode_chart
from esper_agent.report.held_out import HeldOut, held_out_rows, load_agent, play_held_out
from esper_agent.report.history import History, curves, read_histories
from esper_agent.report.training_charts import LABEL_HEIGHT, RETURN_HEIGHT, event_traces, return_chart
from esper_agent.runs.directory import RunConfig, RunDirectory
from esper_env import Op, Stage
from esper_env.mdp.rewards import TERMS
from esper_env.rendering.rgb import FAINT, METRIC, OP_COLORS, STAGE_COLORS

SHORT = "ShortEsper-v0"
ESPER = "esper_env.vector_env:EsperVectorEnv"
gymnasium.register(SHORT, entry_point=None, vector_entry_point=ESPER, kwargs={"task": "digits_mlp", "horizon": 12})
SIZES = ["--n-envs", "2", "--set", "n_steps=12", "--set", "sequence_length=12", "--set", "n_minibatches=1"]


def train(env_id: str, directory: Path, *more: str) -> RunDirectory:
    steps = ["--total-timesteps", "72", "--no-progress"]
    assert cli.main(["train", env_id, "--run-dir", str(directory), *SIZES, *steps, *more]) == 0
    return RunDirectory(directory)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A short run of growing networks, with a report."""
    trained = train(SHORT, tmp_path_factory.mktemp("runs") / "first")
    assert cli.main(["report", str(trained.path), "--episodes", "3"]) == 0
    return trained


@pytest.fixture(scope="module")
def html(run: RunDirectory) -> str:
    return run.report_file.read_text(encoding="utf-8")


class Outline(HTMLParser):
    """The tags, headings, notes and chart data of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self.charts: dict[str, dict[str, Any]] = {}
        self._within: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._within.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        while self._within and self._within.pop()[0] != tag:  # meta has no end
            pass

    def handle_data(self, data: str) -> None:
        tag, attributes = self._within[-1] if self._within else ("", {})
        if name := attributes.get("data-chart"):
            self.charts[name] = json.loads(data)
        elif data.strip():
            self.text.setdefault(tag, []).append(data.strip())


def test_the_page_has_every_section_and_a_figure_for_every_chart(html: str) -> None:
    outline = Outline(html)
    assert outline.text["h2"] == ["Training", "Held-out comparison", "Held-out episodes"]
    titles = [
        "Plain return in training",
        "Operations",
        "Entropy",
        "Critic and step size",
        "Test accuracy",
        "Discounted return",
    ]
    assert outline.text["h3"] == [*titles, "Seed 10000", "Seed 10001", "Seed 10002"]
    places = [attributes["id"] for tag, attributes in outline.tags if tag == "div" and attributes.get("role") == "img"]
    assert places == list(outline.charts)
    assert len(places) == len(outline.text["h3"])
    assert {"never", "plateau"} <= set(outline.text["th"])


def test_every_chart_is_valid_by_plotlys_own_schema(html: str) -> None:
    for figure in Outline(html).charts.values():
        assert plotly.graph_objects.Figure(figure).data


def test_the_page_asks_the_network_for_nothing(html: str) -> None:
    outline = Outline(html)
    assert not [(tag, a) for tag, a in outline.tags if {"src", "href", "srcset", "action"} & set(a)]
    assert not {"link", "iframe", "img", "object", "embed", "base"} & {tag for tag, _ in outline.tags}
    (style,) = outline.text["style"]
    assert "url(" not in style
    assert "@import" not in style
    policies = [a["content"] for _, a in outline.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert len(policies) == 1
    assert policies[0] is not None
    assert policies[0].startswith("default-src 'none';")
    assert "http" not in policies[0]


def test_the_same_run_gives_the_same_page(run: RunDirectory, html: str, tmp_path: Path) -> None:
    again = tmp_path / "again.html"
    assert cli.main(["report", str(run.path), "--episodes", "3", "--out", str(again)]) == 0
    assert again.read_text(encoding="utf-8") == html


def test_shares_of_operations_are_on_record(run: RunDirectory) -> None:
    for row in run.metrics():
        shares = [row[f"rollout/share/op/{op}"] for op in range(len(Op))]
        assert sum(shares) == pytest.approx(1)
        assert all(round(24 * share, 4).is_integer() for share in shares)  # of the rollout's 24 decisions


@pytest.mark.ledger("Y35")
def test_a_return_is_the_same_number_in_evaluate_report_and_compare(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["evaluate", str(run.path), "--episodes", "3", "--instances", "test", "--json"]) == 0
    evaluated = json.loads(capsys.readouterr().out)["agent"]
    histories = read_histories([run])
    reported = play_held_out(histories, 3, EVALUATION_SEED)
    assert isinstance(reported, HeldOut)
    compared = play(load_agent(histories[0]), make_test_env(SHORT, 3), EVALUATION_SEED)
    assert evaluated["discounted_return"] == pytest.approx(compared.discounted_return.mean(), rel=1e-6)
    shown = f"{evaluated['discounted_return']:.3f}"
    assert dict(facts(histories, reported))["discounted return, held-out"] == shown
    assert held_out_rows(reported)[0][-1].startswith(shown)
    assert f"{evaluated['episode_return']:.3f}" != shown  # or this would say nothing


@pytest.fixture(scope="module")
def courses() -> tuple[list[Course], Any]:
    """Random episodes as they were watched, and how they ended."""
    env = make_test_env(SHORT, 6, training_steps=1)
    recorder = Recorder(env, 6)
    ends = play(RandomLegal(env, seed=1), env, 40, watchers=[recorder])
    return recorder.courses(40), ends


def test_watched_episodes_add_up_to_what_was_played(courses: tuple[list[Course], Any]) -> None:
    episodes, ends = courses
    for row, episode in enumerate(episodes):
        assert (episode.seed, episode.steps, episode.slots) == (40 + row, 12, 3)
        assert sum(terms.sum() for terms in episode.reward_terms.values()) == pytest.approx(ends.episode_return[row])
        assert episode.committed[-1] == pytest.approx(ends.val_accuracy[row])
        assert episode.added[-1] == pytest.approx(ends.added_parameters[row])


def test_watched_stages_follow_from_watched_operations(courses: tuple[list[Course], Any]) -> None:
    born = 0
    for episode in courses[0]:
        planted = np.isin(episode.stage, (Stage.DORMANT, Stage.EMBARGOED), invert=True)
        for moment, slot in np.argwhere(planted[1:] & ~planted[:-1]) + np.array([1, 0]):
            assert (episode.op[moment], episode.slot[moment]) == (Op.GERMINATE, slot)
            born += 1
    assert born > 6


def test_a_ruined_episode_is_drawn_up_to_its_end() -> None:
    env = make_test_env(SHORT, 4, learning_rate=(500.0, 500.0), max_rollbacks=0)
    recorder = Recorder(env, 4)
    ends = play(GrowEverything(env), env, 0, watchers=[recorder])
    episodes = recorder.courses(0)
    assert min(episode.steps for episode in episodes) < 12
    for row, episode in enumerate(episodes):
        assert bool(episode.rolled_back[-1]) == (episode.steps < 12)
        assert sum(terms.sum() for terms in episode.reward_terms.values()) == pytest.approx(ends.episode_return[row])
        assert episode_chart(episode, "").traces


def test_every_occupied_slot_is_drawn_once_per_step_in_its_stages_colour(courses: tuple[list[Course], Any]) -> None:
    for episode in courses[0]:
        bars = [trace for trace in episode_chart(episode, "").traces if trace["type"] == "bar" and "base" in trace]
        bands = [trace for trace in bars if "text" in trace]
        drawn = {
            (x, episode.slots - 1 - int(floor)): trace["marker"]["color"]
            for trace in bands
            for x, floor in zip(trace["x"], trace["base"], strict=True)
        }
        occupied = {(m, s) for m, s in np.argwhere(episode.stage != Stage.DORMANT).tolist()}
        assert set(drawn) == occupied
        for (moment, slot), color in drawn.items():
            stage = STAGE_COLORS[Stage(int(episode.stage[moment, slot]))]
            assert color.startswith(f"rgba({int(stage[1:3], 16)},{int(stage[3:5], 16)},{int(stage[5:7], 16)},")
        heights = sum(sum(trace["y"]) for trace in bars if "text" not in trace)
        assert heights == pytest.approx(BAR * episode.alpha[1:].sum(), rel=1e-4)


def test_slots_in_which_nothing_grows_are_drawn_too() -> None:
    env = make_test_env(SHORT, 1)
    recorder = Recorder(env, 1)
    play(NeverGrow(env), env, 0, watchers=[recorder])
    chart = episode_chart(recorder.courses(0)[0], "")
    lanes = [trace for trace in chart.traces if trace.get("yaxis", "y") == "y"]  # plotly hides an axis without traces
    assert sorted(trace["y"][0] for trace in lanes) == [0, 1, 2]


def crafted(path: Path, returns: list[float], seed: int = 0, **last_row: Any) -> History:
    rows = [{"time/total_timesteps": 10 * i, "rollout/ep_rew_mean": value} for i, value in enumerate(returns, start=1)]
    rows[-1] |= last_row
    return History(RunDirectory(path), RunConfig("Crafted-v0", seed=seed), rows)


def test_the_band_over_runs_is_mean_and_bootstrap_interval_where_all_have_been() -> None:
    runs = [crafted(Path("a"), [0, 1, 2, 3]), crafted(Path("b"), [2, 3, 4]), crafted(Path("c"), [4, 5, 6, 7, 8])]
    found = curves(runs, "rollout/ep_rew_mean")
    assert found is not None
    assert found[0].tolist() == [10, 20, 30]
    assert found[1].tolist() == [[0, 1, 2], [2, 3, 4], [4, 5, 6]]
    assert curves(runs, "never recorded") is None
    chart = return_chart(runs, {})
    assert isinstance(chart, Chart)
    band = next(trace for trace in chart.traces if trace.get("fill") == "toself")
    assert band["y"] == [4, 5, 6, 2, 1, 0]  # all draws of the highest run, then of the lowest: 1 in 27 each
    mean = next(trace for trace in chart.traces if trace.get("name") == "mean")
    assert mean["y"] == [2, 3, 4]


def test_events_stand_on_the_time_axis_with_their_message() -> None:
    event = {"name": "kl_spike", "step": 20, "head": None, "value": 0.4, "threshold": 0.1}
    events = [
        event | {"severity": "warning", "message": "KL reached 0.4"},
        event | {"severity": "critical", "message": "KL lasts", "value": None},
    ]
    history = crafted(Path("a"), [0, 1], **{"diagnostics/events": events})
    warning, critical = event_traces([history])
    assert (warning["x"], warning["y"]) == ([20], ["kl spike"])
    assert "KL reached 0.4" in warning["text"][0]
    assert "critical" in critical["hovertemplate"]
    chart = return_chart([history], {"never": 0.5})
    assert isinstance(chart, Chart)
    assert plotly.graph_objects.Figure(chart.figure()).data
    assert isinstance(return_chart([crafted(Path("b"), [math.nan])], {}), Chart)


def test_names_of_baselines_that_are_close_do_not_overlap() -> None:
    levels = {"never": 0.35, "greedy": 0.399, "everything": 0.4, "schedule": 0.401, "plateau": 0.437, "oracle": 0.5}
    chart = return_chart([crafted(Path("a"), [0.3, 0.5])], levels)
    assert isinstance(chart, Chart)
    low, high = chart.axes["yaxis"]["range"]
    places = [(one["x"], (one["y"] - low) / (high - low) * RETURN_HEIGHT) for one in chart.axes["annotations"]]
    assert len(places) == len(levels)
    for (x, y), (other_x, other_y) in itertools.combinations(places, 2):
        assert x != other_x or abs(y - other_y) >= LABEL_HEIGHT - 1e-6
    assert max(y for _, y in places) + LABEL_HEIGHT <= RETURN_HEIGHT


def test_a_colour_means_one_thing_whatever_else_a_chart_shows() -> None:
    kinds = [colors.SLOTS, colors.HEADS, colors.VALUES, colors.TERM_PALETTE, (colors.CRITIC, colors.KL, colors.WARNED)]
    pictures = {*STAGE_COLORS.values(), *OP_COLORS.values(), METRIC, FAINT}
    used = [color for kind in kinds for color in kind]
    assert len(set(used)) == len(used)
    assert not pictures & set(used)
    assert len({colors.term_color(name) for name in TERMS}) == len(colors.TERM_PALETTE) == len(list(TERMS))


def test_a_run_without_ended_episodes_has_a_note_instead_of_a_curve() -> None:
    history = History(RunDirectory(Path("a")), RunConfig("Crafted-v0"), [{"time/total_timesteps": 10}])
    assert return_chart([history], {}) == Note("No learning curve: no episode has ended yet.")


@pytest.mark.ledger("Y11")
@pytest.mark.parametrize("evil", ['</script><script>alert("x")</script>', "<!--<script>"])
def test_words_from_outside_cannot_become_code(evil: str) -> None:
    chart = Chart(evil, evil, [{"type": "scatter", "text": [evil]}], {}, 100, ((evil, "#000000"),))
    table = page.Table((evil,), [[evil]], evil)
    section = page.Section(evil, evil, [chart, table, Note(evil)])
    text = page.render(evil, [(evil, evil)], [section], "// no library")
    # After "<!--" and "<script" a browser takes the end of the data for more of it, and draws nothing.
    assert "<" not in text.partition('data-chart="chart-1-1">')[2].partition("</script>\n<figcaption>")[0]
    outline = Outline(text)
    assert [tag for tag, _ in outline.tags].count("script") == 3  # the chart's data, the library, the start
    assert outline.charts["chart-1-1"]["data"][0]["text"] == [evil]
    assert outline.text["title"] == [evil]


def test_several_runs_share_a_page(run: RunDirectory, tmp_path: Path) -> None:
    other = train(SHORT, tmp_path / "second", "--seed", "1")
    out = tmp_path / "both.html"
    assert cli.main(["report", str(run.path), str(other.path), "--episodes", "2", "--out", str(out)]) == 0
    outline = Outline(out.read_text(encoding="utf-8"))
    assert outline.text["h1"] == [f"{SHORT}: first (seed 0), second (seed 1)"]
    assert {"first (seed 0)", "second (seed 1)"} <= set(outline.text["th"])
    assert any(trace.get("fill") == "toself" for trace in outline.charts["chart-1-1"]["data"])


def without_checkpoint(run: RunDirectory) -> str:
    shutil.rmtree(run.checkpoint_directory)
    return "holds no checkpoint yet"


def without_shares(run: RunDirectory) -> str:
    rows = [{k: v for k, v in row.items() if not k.startswith("rollout/share")} for row in run.metrics()]
    run.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "No operations"


def with_damaged_checkpoint(run: RunDirectory) -> str:
    run.latest_checkpoint().write_bytes(b"not a checkpoint")
    return "is damaged"


def from_another_time(run: RunDirectory) -> str:
    """The network has changed since the run was trained."""
    state = load_checkpoint(run.latest_checkpoint())
    name, _ = state["policy"].popitem()
    save_checkpoint(run.latest_checkpoint(), state)
    return f"the saved parameter {name} has shape None"


@pytest.mark.parametrize("remove", [without_checkpoint, without_shares, with_damaged_checkpoint, from_another_time])
def test_what_a_run_lacks_is_one_line_and_the_rest_of_the_page_is_there(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str], remove: Callable[[RunDirectory], str]
) -> None:
    copy = RunDirectory(tmp_path / "copy")
    shutil.copytree(run.path, copy.path)
    expected = remove(copy)
    assert cli.main(["report", str(copy.path), "--episodes", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert expected in lines[0]
    assert "Plain return in training" in Outline(copy.report_file.read_text(encoding="utf-8")).text["h3"]


def test_another_environment_has_a_report_without_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = train("resumable_env:Resumable-v0", tmp_path / "other")
    assert cli.main(["report", str(other.path), "--trust"]) == 0
    assert "is no Esper environment" in capsys.readouterr().out
    outline = Outline(other.report_file.read_text(encoding="utf-8"))
    assert outline.text["h3"] == ["Plain return in training", "Operations", "Entropy", "Critic and step size"]


def empty_directory(_: RunDirectory, directory: Path) -> list[Path]:
    return [directory]


def no_metrics(run: RunDirectory, directory: Path) -> list[Path]:
    shutil.copy(run.config_file, directory / "config.json")
    return [directory]


def other_environment(run: RunDirectory, directory: Path) -> list[Path]:
    config = json.loads(run.config_file.read_text()) | {"env_id": "Esper-v0"}
    (directory / "config.json").write_text(json.dumps(config))
    shutil.copy(run.metrics_file, directory / "metrics.jsonl")
    return [run.path, directory]


@pytest.mark.parametrize(
    ("prepare", "named"),
    [
        (empty_directory, "holds no run"),
        (no_metrics, "holds no metrics yet"),
        (other_environment, "a report is about one environment"),
    ],
)
def test_what_no_page_can_be_about_is_one_clear_line(
    run: RunDirectory,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    prepare: Callable[[RunDirectory, Path], list[Path]],
    named: str,
) -> None:
    runs = prepare(run, tmp_path)
    assert cli.main(["report", *map(str, runs), "--out", str(tmp_path / "x.html")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line
    assert not (tmp_path / "x.html").exists()


def test_a_missing_library_names_the_extra(
    run: RunDirectory, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    assert cli.main(["report", str(run.path)]) == 1
    assert capsys.readouterr().err == "esper-agent: error: a report needs plotly: pip install 'esper-agent[report]'\n"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here: install Debian's package chromium to see the page drawn")
    opened = Browser()
    yield opened
    opened.close()


LAID_OUT = """[...document.querySelectorAll(".chart")].map(chart => {
  const box = chart.getBoundingClientRect(), svg = chart.querySelector(".main-svg").getBoundingClientRect();
  return [box.left, box.right, svg.width / box.width, chart.querySelectorAll(".trace, .point, .points").length];
})"""


@pytest.mark.parametrize(("width", "height", "phone"), [(1280, 900, False), (360, 740, True)])
def test_a_browser_draws_the_page_without_complaint_and_within_its_width(
    browser: Browser, run: RunDirectory, html: str, width: int, height: int, phone: bool
) -> None:
    browser.open(run.report_file, width, height, phone=phone)
    assert browser.complaints == []
    assert browser.requests == [run.report_file.as_uri()]
    laid_out = browser.evaluate(LAID_OUT)
    assert len(laid_out) == len(Outline(html).charts)
    for left, right, share, marks in laid_out:
        assert left >= 0
        assert right <= width
        assert share == pytest.approx(1, abs=0.01)
        assert marks > 0
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate("document.querySelector('#chart-3-1').textContent").count("slot ") == 3


def test_the_browser_would_notice_a_request_and_an_error(browser: Browser, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    broken.write_text('<img src="missing.png"><script>undefinedFunction()</script>')
    browser.open(broken, 400, 400, phone=False)
    assert len(browser.requests) == 2
    assert any("undefinedFunction" in complaint for complaint in browser.complaints)
