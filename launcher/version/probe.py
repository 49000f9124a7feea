"""Run by the *server's* Python (`python -c`), never imported by kvtune: tells which SGLang it would start.

Prints one line: `KVTUNE_PROBE {"version": ..., "values": [...], "switches": [...], "special": {name: help},
"aliases": [...], "dests": {name: dest}}`, special being those with an action of their own, aliases those of them
that store a value as it is, dests holding only what differs from the name.
Reads SGLang's metadata and its source text without importing it (an import takes 10 to 30 seconds). Flags are
declared by `add_argument("--name", ...)` (all versions) or, from 0.5.14, as annotated fields
`name: A[type, "help"]` of ServerArgs and of the classes in srt/arg_groups. Runs on Python 3.8 and newer.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import pathlib
from collections.abc import Iterator


def text_of(node: ast.AST) -> str:
    """The string of a literal, of joined literals and of f-strings' constant parts; "" for anything else."""
    return " ".join(n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str))


def name_of(node: ast.AST | None) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    return getattr(node, "attr", getattr(node, "id", ""))


def is_bool(node: ast.expr) -> bool:
    """Whether a type is `bool`, `Optional[bool]` or `bool | None`, which SGLang makes a bare switch alike."""
    if isinstance(node, ast.Subscript) and name_of(node.value) == "Optional":
        return is_bool(node.slice)
    if isinstance(node, ast.BinOp):
        return {name_of(node.left), name_of(node.right)} == {"bool", "None"}
    return name_of(node) == "bool"


class Flags(ast.NodeVisitor):
    """Collects flag names by how they are parsed: a value, a bare switch, or an action of SGLang's own."""

    def __init__(self) -> None:
        self.values: set[str] = set()
        self.switches: set[str] = set()
        self.special: dict[str, str] = {}
        self.aliases: set[str] = set()
        self.dests: dict[str, str] = {}

    def add(self, names: list[str], action: str, hint: str, dest: str) -> None:
        names = [name[2:] for name in names if name.startswith("--")]
        # As argparse does: the first long name, unless told otherwise.
        dest = dest or "".join(names[:1]).replace("-", "_")
        if action == "BooleanOptionalAction":
            names += ["no-" + name for name in names]
        self.dests.update((name, dest) for name in names if name.replace("-", "_") != dest)
        if action.endswith("AliasStoreAction"):
            self.aliases.update(names)
        if action not in ("store", "store_true"):
            self.special.update((name, hint) for name in names)
        else:
            (self.switches if action == "store_true" else self.values).update(names)

    def visit_Call(self, node: ast.Call) -> None:
        if name_of(node.func) == "add_argument" and node.args:
            words = {word.arg: word.value for word in node.keywords}
            names = [name_of(arg) for arg in node.args if isinstance(arg, ast.Constant)]
            action = name_of(words["action"]) if "action" in words else "store"
            self.add(names, action, text_of(words["help"]) if "help" in words else "", name_of(words.get("dest")))
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        note = node.annotation
        if isinstance(note, ast.Subscript) and name_of(note.value) in ("A", "Annotated"):
            parts = note.slice.elts if isinstance(note.slice, ast.Tuple) else []
            self.add_field(name_of(node.target), parts)

    def add_field(self, field: str, parts: list[ast.expr]) -> None:
        calls = {name_of(part.func): part for part in parts[1:] if isinstance(part, ast.Call)}
        words = {word.arg: word.value for word in calls["Arg"].keywords} if "Arg" in calls else {}
        hidden = "no_cli" in words and getattr(words["no_cli"], "value", False)
        # A field that has a namespace alone, and neither help nor Arg, gets no flag.
        if hidden or len(parts) == 1 + ("NS" in calls):
            return
        own = name_of(words["cli_name"]) if "cli_name" in words else "--" + field.replace("_", "-")
        aliases = [name_of(item) for item in getattr(words.get("aliases"), "elts", [])]
        bare = bool(parts) and is_bool(parts[0]) and not {"nargs", "type_parser", "choices"} & set(words)
        action = name_of(words["action"]) if "action" in words else ("store_true" if bare else "store")
        self.add([own, *aliases], action, text_of(words["help"]) if "help" in words else "", field)


def sources() -> Iterator[pathlib.Path]:
    spec = importlib.util.find_spec("sglang")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        srt = pathlib.Path(place) / "srt"
        yield from (path for path in [srt / "server_args.py"] if path.exists())
        yield from sorted((srt / "arg_groups").rglob("*.py"))


def main() -> None:
    flags = Flags()
    for path in sources():
        flags.visit(ast.parse(path.read_text(encoding="utf-8")))
    answer = {
        "version": importlib.metadata.version("sglang"),
        "values": sorted(flags.values),
        "switches": sorted(flags.switches),
        "special": flags.special,
        "aliases": sorted(flags.aliases),
        "dests": flags.dests,
    }
    print("KVTUNE_PROBE " + json.dumps(answer))


main()
