"""The program: without a subcommand it runs a study."""

from __future__ import annotations

from typing import Any

import click

from tuner.cli.control import pause, resume, stop
from tuner.cli.look import compare, list_studies, log, show, status
from tuner.cli.outcome import export, plan, report
from tuner.version import kvtune_version

_STUDY_KEYS = (
    "budget",
    "model",
    "workload",
    "output",
    "seed",
    "max_trials",
    "max_crashes",
    "until_gain_below",
    "warm_start",
)


@click.group(
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 found, 1 the machine is at fault, 2 usage, 3 nothing feasible, 130 interrupted.",
)
@click.option("--budget", metavar="TIME", help="Wall time for everything: 2h, 90m. Default: 2h.")
@click.option("--config", "study_file", metavar="FILE", help="Study file (YAML).")
@click.option("--model", metavar="PATH", help="What SGLang serves. Without one: the simulated engine.")
@click.option("--workload", metavar="SPEC|FILE", help="Prompts, or random:in=1000,out=500,cv=0.5.")
@click.option("--output", metavar="FILE", help="Where the answer goes. Default: best-config.yaml.")
@click.option("--max-trials", type=click.IntRange(1), help="End after so many starts.")
@click.option("--max-crashes", type=click.IntRange(1), help="End after so many failed configurations.")
@click.option(
    "--until-gain-below",
    type=click.FloatRange(0, 1, max_open=True),
    metavar="SHARE",
    help="End when no more than this is expected (0.01 is 1%).",
)
@click.option("--seed", type=click.IntRange(0), help="Of the workload's sample. Default: 0.")
@click.option("--warm-start", metavar="STUDY", help="Go on from what that study learned. Default: all that fit.")
@click.option("--no-warm-start", is_flag=True, help="Learn nothing from earlier studies.")
@click.option("--resume", "resumed", metavar="STUDY", help="Go on with an interrupted study.")
@click.option("--name-file", metavar="FILE", help="Write the study's name there, for a later --resume.")
@click.option("--detach", is_flag=True, help="Run in the background; print the study's name.")
@click.option("--serve-best", is_flag=True, help="At the end leave a server with the answer running.")
@click.option("--then", metavar="COMMAND", help="Start this at the end, interrupted or not: what ran before.")
@click.option("--log-json", is_flag=True, help="Progress as JSON lines on stdout.")
@click.version_option(kvtune_version(), "--version", "-V", message="kvtune-auto %(version)s")
@click.pass_context
def program(context: click.Context, /, **options: Any) -> int:
    """Find the SGLang launch flags that finish the most tokens per second on this box.

    SGLang is started anew for every trial; the answer is a YAML that `sglang --config` loads as it is.
    """
    if context.invoked_subcommand is not None:
        given = [name for name, value in options.items() if value]
        if given:
            raise click.UsageError(f"--{given[0].replace('_', '-')} does not go with a subcommand")
        return 0
    from tuner.cli.start import Request, run

    told = {key: options[key] for key in _STUDY_KEYS if options[key] is not None}
    if options["no_warm_start"]:
        told["warm_start"] = False
    switches = ("study_file", "resumed", "name_file", "detach", "serve_best", "then", "log_json")
    return run(Request(told=told, **{name: options[name] for name in switches}))


for command in (list_studies, show, status, log, compare, plan, export, report, stop, pause, resume):
    program.add_command(command)
