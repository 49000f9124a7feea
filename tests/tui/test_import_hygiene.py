"""What kvtop must not load: checked in processes of their own, where nothing else has been imported."""

import subprocess
import sys


def loaded_after(statement: str) -> set[str]:
    program = f"import sys\n{statement}\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_one_shot_json_is_light() -> None:
    statement = (
        "import io, contextlib, os\nfrom tui.cli import run\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):\n"
        "    run(['--once', '--json', '--url', 'http://127.0.0.1:9'], {'HOME': os.devnull})"
    )
    heavy = {"textual", "rich", "httpx", "asyncio", "pydantic", "numpy", "skopt", "sklearn"}
    assert not loaded_after(statement) & heavy


def test_the_screen_needs_no_optimiser() -> None:
    loaded = loaded_after("import tui.app, tui.source, tui.record, tui.panels.detail, tui.demo")
    assert "textual" in loaded
    assert not loaded & {"skopt", "sklearn", "scipy", "numpy", "matplotlib"}


def test_panels_and_rules_draw_without_textual() -> None:
    loaded = loaded_after("import tui.view, tui.panels.detail, tui.diagnose.card, tui.once")
    assert not loaded & {"textual", "rich", "httpx"}
