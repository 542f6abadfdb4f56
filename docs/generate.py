"""Write the pages that are made from the code: `make docs`."""

from inspect import cleandoc
from pathlib import Path

from esper_env import EsperEnv

DOCS = Path(__file__).parent
NOTICE = "<!-- Made by `make docs` from the docstring of EsperEnv; edit that. -->"


def environment_page() -> str:
    """The environment's page: its class docstring, as it is."""
    return f"# The environment\n\n{NOTICE}\n\n{cleandoc(EsperEnv.__doc__ or '')}\n"


PAGES = {"environment.md": environment_page}


def main() -> None:
    """Write every page."""
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
        print(f"wrote docs/{name}")


if __name__ == "__main__":
    main()
