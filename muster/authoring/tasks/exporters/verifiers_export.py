"""Export the tasks of a `verifiers` taskset, in a separate Python environment: JSON Lines on stdout.

    python verifiers_export.py ORDER     # JSON: taskset (its id), count (or null), config

The first line is about the taskset: its rewards, each with its module, its weight and its code in a plain form, and
what Muster has no place for (`obstacles`). Then comes one line per task. `muster.authoring.tasks.from_verifiers` reads
them. Nothing of Muster is imported here.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import os
import sys
import textwrap

MAX_CODE = 2000
"""Most characters of a reward's plain form; longer ones are not known anyway."""


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
    about = {
        "verifiers": verifiers.__version__,
        "taskset": qualified(type(taskset)),
        "task": qualified(type(first)),
        "rewards": [reward(fn) for fn in first.hooks("reward")],
        "obstacles": obstacles(vf, order["taskset"], taskset, first),
    }
    print(json.dumps(about), file=out)
    for task in itertools.chain([first], tasks):
        print(json.dumps(row(vf, task)), file=out)
    out.close()


def obstacles(vf, name, taskset, task):
    """Return what the taskset has besides prompts and rewards."""
    found = []
    kind = type(task)
    if vf.environment_class(name) is not vf.SingleAgentEnv:
        found.append(f"a custom environment, {qualified(vf.environment_class(name))}")
    if taskset.toolsets(taskset.config) or task.toolsets(task.config):
        found.append("tools")
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
