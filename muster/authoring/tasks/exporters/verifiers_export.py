"""Export the tasks of a `verifiers` taskset, in a separate Python environment: JSON Lines on stdout.

    python verifiers_export.py ORDER     # JSON: taskset (its id), count (or null), config

The first line is about the taskset: its rewards, each with its module, its weight and its code in a plain form, its
tools that are pure functions, each with its source, and what Muster has no place for (`obstacles`). Then comes one line
per task. `muster.authoring.tasks.from_verifiers` reads them. Nothing of Muster is imported here.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import itertools
import json
import os
import symtable
import sys
import textwrap
import typing

MAX_CODE = 2000
"""Most characters of a reward's plain form; longer ones are not known anyway."""

TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}
"""Of a tool's parameters."""

PURE = (
    *("ast", "bisect", "cmath", "collections", "decimal", "difflib", "fractions", "functools", "heapq", "itertools"),
    *("json", "math", "operator", "re", "string", "textwrap"),
)
"""Modules that a tool may use: no clock, chance, files or network, and the sandbox's Python has them."""

IMPURE = ("__import__", "eval", "exec", "getattr", "globals", "hash", "id", "input", "locals", "open", "print", "vars")
"""Builtins whose result is not that of their arguments, or that hide what is used."""

RUN = """
def run(**given):
    given = {defaults!r} | given
    found = _body(**given | {{name: float(given[name]) for name in {numbers!r}}})
    import json
    return found if isinstance(found, str) else json.dumps(found)
"""
"""How the sandbox calls a tool, and how MCP writes what is no text."""


def main() -> None:
    order = json.loads(sys.argv[1])
    # What the package prints goes to stderr.
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)

    import verifiers
    import verifiers.v1 as vf

    config = vf.taskset_config_type(order["taskset"]).model_validate({**order["config"], "id": order["taskset"]})
    taskset = vf.load_taskset(config)
    if order["count"] is None and not taskset.bounded:
        raise SystemExit("the taskset never ends: say how many tasks with --count")
    tasks = iter(taskset if order["count"] is None else taskset.take(order["count"]))
    first = next(tasks, None)
    if first is None:
        raise SystemExit("the taskset has no task")
    tools, reasons = tools_of(vf, taskset, first)
    about = {
        "verifiers": verifiers.__version__,
        "taskset": qualified(type(taskset)),
        "task": qualified(type(first)),
        "rewards": [reward(fn) for fn in first.hooks("reward")],
        "tools": tools,
        "obstacles": obstacles(vf, order["taskset"], first) + reasons,
    }
    print(json.dumps(about), file=out)
    for task in itertools.chain([first], tasks):
        print(json.dumps(row(vf, task)), file=out)
    out.close()


def obstacles(vf, name, task):
    """Return what the taskset has besides prompts, rewards and tools."""
    found = []
    kind = type(task)
    if vf.environment_class(name) is not vf.SingleAgentEnv:
        found.append(f"a custom environment, {qualified(vf.environment_class(name))}")
    if task.plugged_judges():
        found.append("judges, which are models")
    if kind.NEEDS_CONTAINER:
        found.append("a container")
    if task.hooks("stop"):
        found.append(f"stop conditions, {', '.join(qualified(fn) for fn in task.hooks('stop'))}")
    for hook in ("setup", "finalize", "score", "hooks", "runtime_env"):
        if getattr(kind, hook) is not getattr(vf.Task, hook):
            found.append(f"a custom {hook}, {qualified(getattr(kind, hook))}")
    return found


def reward(fn):
    """Describe a reward."""
    return {
        "name": fn.__name__,
        "module": str(fn.__module__),
        "weight": float(getattr(fn, "_vf_weight", 1.0)),
        "code": plain_code(inspect.unwrap(fn)),
    }


def row(vf, task):
    """Return a task's prompt, and the fields that its own class adds to the data."""
    data = task.data
    messages = [["system", data.system_prompt]] if data.system_prompt else []
    if isinstance(data.prompt, str):
        messages.append(["user", data.prompt])
    else:
        messages += [[message.role, message.content] for message in data.prompt or []]
    messages = [[role, content if isinstance(content, str) else None] for role, content in messages]
    fields = set(type(data).model_fields) - set(vf.TaskData.model_fields)
    return {
        "index": data.idx,
        "name": data.id or data.name,
        "messages": messages,
        "image": data.image,
        "data": data.model_dump(mode="json", include=fields),
    }


def qualified(thing):
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', '')}"


# --- Tools


def tools_of(vf, taskset, task):
    """Return the tools that are pure functions, in order of their names, and of every other one why it is none."""
    from verifiers.v1.utils.decorators import discover_decorated

    found, reasons = [], []
    for toolset in (*taskset.toolsets(taskset.config), *task.toolsets(task.config)):
        if getattr(toolset.config, "url", None):
            reasons.append(f"tools that are served elsewhere, {qualified(type(toolset))}")
        for hook in ("setup", "setup_task", "register"):
            own = getattr(type(toolset), hook)
            if own is not getattr(vf.Toolset, hook):
                reasons.append(f"tools with a custom {hook}, {qualified(own)}")
        for method in discover_decorated(toolset, "tool"):
            name = getattr(method, "tool_name", None) or method.__name__
            try:
                found.append(tool("_".join(filter(None, (toolset.server_name, name))), method))
            except ValueError as error:
                reasons.append(f"a tool that is no pure function, {qualified(method)}: {error}")
    return sorted(found, key=lambda one: one["name"]), reasons


def tool(name, method):
    """Describe a tool whose result depends on its arguments alone. Raises ValueError that says what else it needs."""
    # 1. Its definition.
    fn = getattr(method, "__func__", method)
    try:
        # As it stands: without its indentation, texts of several lines would change.
        code = inspect.getsource(fn)
        definition = ast.parse(f"if 1:\n{code}").body[0].body[0] if code[0].isspace() else ast.parse(code).body[0]
        hints = typing.get_type_hints(fn)
    except (OSError, TypeError, SyntaxError, NameError, AttributeError) as error:
        raise ValueError(f"its source or a type is not there: {error}") from error
    if isinstance(definition, ast.AsyncFunctionDef):
        raise ValueError("it is async")
    if not isinstance(definition, ast.FunctionDef) or hasattr(fn, "__wrapped__") or fn.__code__.co_freevars:
        raise ValueError("it is more than a plain function")

    # 2. Its parameters, and what it returns.
    if hints.get("return") not in (str, int, bool):
        raise ValueError("it is not declared to return str, int or bool")
    parameters, defaults = {}, {}
    for key, one in inspect.signature(method).parameters.items():
        kind = hints.get(key)
        if kind not in list(TYPES) or one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
            raise ValueError(f"its parameter {key} is not declared as str, int, float or bool")
        if one.default is not one.empty:
            defaults[key] = one.default
            if type(one.default) is not kind or repr(one.default) in ("inf", "-inf", "nan"):
                raise ValueError(f"the default of its parameter {key} has another type, or is no finite number")
        parameters[key] = {"type": TYPES[kind], "description": "", "is_required": key not in defaults}

    # 3. Its code, without decorators and types, and without `self`, which is then a name that nothing defines.
    definition.name, definition.decorator_list, definition.returns = "_body", [], None
    definition.args = ast.parse(f"lambda {'*,' * bool(parameters)} {', '.join(parameters)}: 0").body[0].value.args
    body = ast.unparse(definition)
    numbers = [key for key in parameters if hints[key] is float]
    source = "\n".join([*imports_of(fn, definition, body), body, RUN.format(defaults=defaults, numbers=numbers)])
    return {"name": name, "description": inspect.getdoc(fn) or name, "parameters": parameters, "source": source}


def imports_of(fn, definition, body):
    """Return the imports that a function needs. Raises ValueError for any other thing that it uses."""
    for node in ast.walk(definition):
        modules = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            modules = ["." * node.level + (node.module or "")]
        if other := [module for module in modules if module.partition(".")[0] not in PURE]:
            raise ValueError(f"it imports {other[0]}")
    lines, tables = set(), symtable.symtable(body, "<tool>", "exec").get_children()
    for table in tables:
        tables += table.get_children()
        for name in [symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()]:
            if name in fn.__globals__:
                lines.add(import_of(name, fn.__globals__[name]))
            elif name in IMPURE or not hasattr(builtins, name):
                raise ValueError(f"it uses {name}")
    return sorted(lines)


def import_of(name, thing):
    """Return what imports a thing of a pure module. Raises ValueError if it is of none."""
    known = str(getattr(thing, "__name__", ""))
    if inspect.ismodule(thing) and known.partition(".")[0] in PURE:
        return f"import {known} as {name}"
    for module in PURE:
        if getattr(importlib.import_module(module), known, None) is thing and not inspect.ismodule(thing):
            return f"from {module} import {known} as {name}"
    raise ValueError(f"it uses {name} of its module")


# --- The plain form of a reward


def plain_code(fn):
    """Return what a reward returns, as one expression: names resolved, steps put into it, conversions left out.

    Empty where it is anything else than assignments and one return.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(fn)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return ""
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
        return ""
    body = definition.body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    parameters = {argument.arg for argument in (*definition.args.args, *definition.args.kwonlyargs)}
    if not parameters <= {"self", "task", "trace"}:
        return ""
    values = {"task": ast.parse("self.data", mode="eval").body} if "task" in parameters else {}
    for step in body:
        plain = Plain(fn.__globals__, parameters, values)
        if isinstance(step, ast.Assign) and len(step.targets) == 1 and isinstance(step.targets[0], ast.Name):
            values[step.targets[0].id] = plain.visit(step.value)
        elif isinstance(step, ast.Return) and step is body[-1] and step.value is not None:
            code = ast.unparse(number_of(plain.visit(step.value), fn.__globals__))
            return code if len(code) <= MAX_CODE else ""
        else:
            return ""
    return ""


def number_of(node, names):
    """Return what stands in `float(…)`, `int(…)`, `bool(…)` or `1 if … else 0` around a whole expression."""
    while True:
        match node:
            case ast.Call(func=ast.Name(id=("float" | "int" | "bool") as name), args=[inner], keywords=[]):
                if name in names:
                    return node
                node = inner
            case ast.IfExp(test=test, body=ast.Constant(value=1), orelse=ast.Constant(value=0)):
                node = test
            case _:
                return node


class Plain(ast.NodeTransformer):
    """Puts values for names: what was assigned, and for what the module knows its full name."""

    def __init__(self, names, parameters, values):
        self.names, self.parameters, self.values = names, parameters, values

    def visit_Name(self, node):
        if node.id in self.values:
            return self.values[node.id]
        return self._known(node) or node

    def visit_Attribute(self, node):
        return self._known(node) or self.generic_visit(node)

    def _known(self, node):
        """Return the full name of a function that a chain of names leads to, or None."""
        chain = []
        while isinstance(node, ast.Attribute):
            chain.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id in self.parameters or node.id in self.values:
            return None
        thing = self.names.get(node.id)
        for name in chain:
            thing = inspect.getattr_static(thing, name, None)
        if not inspect.isfunction(thing):
            return None
        return ast.parse(qualified(thing), mode="eval").body


if __name__ == "__main__":
    main()
