"""What strangers' programs try in the component: each with what it would have gained.

A program is called by its function `attack`. It returns REACHED only when it gained what it wanted; whatever else it
returns is searched for the host's secrets. FILE, FOLDER and PORT stand for the canaries that `escapes` sets up.
"""

# ruff: noqa: E501 - a program is a line

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

REACHED: Final = "REACHED"


@dataclass(frozen=True)
class Attack:
    """One program."""

    kind: str
    gain: str
    """What it would have gained."""
    body: str
    """Of the function `attack`, in lines; what is before a line `---` stands outside of it."""

    def program(self, **canaries: object) -> str:
        """Return the program, with the canaries in the place of their names."""
        head, _, body = self.body.rpartition("---\n")
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        text = f"import sys, os, builtins\nREACHED = {REACHED!r}\n{head}\ndef attack():\n{lines}"
        for name, value in canaries.items():
            text = text.replace(name, str(value))
        return text


_READ = "a file of the host's"
_WRITE = "a change of the host's files"
_NET = "a connection to a service of the host's"
_RUN = "a program of its own on the host"
_STAY = "something of it in the next call"
_REST = "the machine's memory or time beyond the limits"
_DIFFER = "a reward that differs between machines"
_EXPECTED = "the expected output, or the host's reply"

ATTACKS: Final = (
    # Files
    Attack("open", _READ, "return open('FILE').read()"),
    Attack("io.FileIO", _READ, "import io\nreturn io.FileIO('FILE').read().decode()"),
    Attack("posix.open", _READ, "import posix\nreturn posix.read(posix.open('FILE', 0), 100).decode()"),
    Attack("_io.open_code", _READ, "import _io\nreturn _io.open_code('FILE').read().decode()"),
    Attack("pathlib", _READ, "import pathlib\nreturn pathlib.Path('FILE').read_text()"),
    Attack("list a folder", _READ, "import posix\nreturn posix.listdir('FOLDER')"),
    Attack("scan a folder", _READ, "import posix\nreturn [e.name for e in posix.scandir('FOLDER')]"),
    Attack("stat", _READ, "import posix\nposix.stat('FILE')\nreturn REACHED"),
    Attack("readlink", _READ, "import posix\nreturn posix.readlink('/proc/self/exe')"),
    Attack("/proc/self/environ", "the environment", "import io\nreturn io.FileIO('/proc/self/environ').read().decode()"),
    Attack("/proc/self/mem", _RUN, "import io\nio.FileIO('/proc/self/mem', 'r+').write(b'x')\nreturn REACHED"),
    Attack("write a file", _WRITE, "import io\nio.FileIO('FOLDER/new', 'w').write(b'x')\nreturn REACHED"),
    Attack("truncate", _WRITE, "import posix\nposix.truncate('FILE', 0)\nreturn REACHED"),
    Attack("unlink", _WRITE, "import posix\nposix.unlink('FILE')\nreturn REACHED"),
    Attack("rename", _WRITE, "import posix\nposix.rename('FILE', 'FILE.old')\nreturn REACHED"),
    Attack("symlink", _WRITE, "import posix\nposix.symlink('/', 'FOLDER/link')\nreturn REACHED"),
    Attack("chmod", _WRITE, "import posix\nposix.chmod('FILE', 0o777)  # the guest's library says yes to it and does nothing\nreturn None"),
    Attack("shutil.copy", _WRITE, "import shutil\nshutil.copyfile('FILE', 'FOLDER/copy')\nreturn REACHED"),
    Attack("tempfile", _WRITE, "import tempfile\nreturn tempfile.mkdtemp() and REACHED"),
    Attack("import a file", _READ, "sys.path.insert(0, 'FOLDER')\nimport canary\nreturn canary.SECRET"),
    Attack(
        "import by a path hook",
        _READ,
        "import importlib.machinery as m\n"
        "sys.meta_path.append(m.PathFinder)\nsys.path_hooks.append(m.FileFinder.path_hook((m.SourceFileLoader, ['.py'])))\n"
        "sys.path.insert(0, 'FOLDER')\nimport canary\nreturn canary.SECRET",
    ),
    Attack("zipimport", _READ, "import zipimport\nreturn zipimport.zipimporter('FOLDER/canary.zip').load_module('canary')"),
    Attack("linecache", _READ, "import linecache\nreturn ''.join(linecache.getlines('FILE')) or None"),
    Attack("pickle that opens", _READ, "import pickle\nreturn pickle.loads(b'cio\\nopen\\n(VFILE\\ntR.').read()"),
    # The process around it
    Attack("read the request pipe", _EXPECTED, "import posix\nreturn posix.read(0, 100).hex() and REACHED"),
    Attack("write to the answer pipe", _EXPECTED, "import posix\nposix.write(1, bytes(13) + b'{}' * 99)\nreturn REACHED"),
    Attack("write to every descriptor", _EXPECTED, "import posix\nfor n in range(64):\n    posix.write(n, b'x')\nreturn REACHED"),
    Attack("close the pipes", _EXPECTED, "import posix\nposix.closerange(0, 64)\nreturn REACHED"),
    Attack("os.environ", "the environment", "import posix\nreturn [dict(os.environ), dict(posix.environ)]"),
    Attack("host paths in a traceback", "where things lie on the host", "import traceback\ntry:\n    1 / 0\nexcept Exception:\n    return traceback.format_exc()"),
    Attack("host paths in modules", "where things lie on the host", "return [[str(getattr(m, '__file__', '')), str(getattr(m, '__path__', ''))] for m in list(sys.modules.values())]"),
    Attack("host paths in code", "where things lie on the host", "import gc, types\nreturn sorted({o.__code__.co_filename for o in gc.get_objects() if isinstance(o, types.FunctionType)})"),
    Attack("host paths in the build's settings", "where things lie on the host", "import sysconfig\nreturn [sys.prefix, sys.executable, sys.path, sys.orig_argv, {k: str(v) for k, v in sysconfig.get_config_vars().items()}]"),
    Attack("uname and user", "who the host is", "out = []\nfor name in ('uname', 'getlogin', 'getuid', 'getpid', 'cpu_count', 'getloadavg'):\n    try:\n        out.append(str(getattr(os, name)()))\n    except Exception as e:\n        out.append(type(e).__name__)\nreturn out"),
    # Network
    Attack("socket", _NET, "import socket\nsocket.create_connection(('127.0.0.1', PORT), 5).send(b'x')\nreturn REACHED"),
    Attack("_socket", _NET, "import _socket\ns = _socket.socket(2, 1, 0)\ns.connect(('127.0.0.1', PORT))\nreturn REACHED"),
    Attack("urllib", _NET, "import urllib.request\nreturn urllib.request.urlopen('http://127.0.0.1:PORT/').read() and REACHED"),
    Attack("asyncio", _NET, "import asyncio\nasyncio.run(asyncio.open_connection('127.0.0.1', PORT))\nreturn REACHED"),
    Attack("name lookup", _NET, "import socket\nreturn socket.getaddrinfo('localhost', 80) and REACHED"),
    Attack("uuid1 asks for the hardware", "who the host is", "import uuid\nreturn uuid.getnode() and uuid.uuid1().hex"),
    # Processes and threads
    Attack("os.fork", _RUN, "return os.fork() >= 0 and REACHED"),
    Attack("subprocess", _RUN, "import subprocess\nreturn subprocess.check_output(['cat', 'FILE']).decode()"),
    Attack("os.system", _RUN, "return os.system('touch FOLDER/new') == 0 and REACHED"),
    Attack("os.popen", _RUN, "return os.popen('cat FILE').read()"),
    Attack("os.execv", _RUN, "os.execv('/bin/sh', ['sh', '-c', 'touch FOLDER/new'])\nreturn REACHED"),
    Attack("os.posix_spawn", _RUN, "os.posix_spawn('/bin/sh', ['sh', '-c', 'touch FOLDER/new'], {})\nreturn REACHED"),
    Attack("multiprocessing", _RUN, "import multiprocessing as m\nm.Process(target=print).start()\nreturn REACHED"),
    Attack("os.kill", "the end of the host's process", "import signal\nos.kill(os.getppid(), signal.SIGKILL)\nreturn REACHED"),
    Attack("abort", "the end of the host's process", "os.abort()"),
    Attack("_exit", "the end of the host's process", "os._exit(0)"),
    Attack("a thread that goes on", _STAY, "import _thread\ndef loop():\n    while True: pass\n_thread.start_new_thread(loop, ())\nreturn REACHED"),
    Attack("a pool of threads", _REST, "from concurrent.futures import ThreadPoolExecutor\nreturn list(ThreadPoolExecutor(8).map(abs, [1])) and REACHED"),
    Attack("signal handler", _STAY, "import signal\nsignal.signal(signal.SIGALRM, lambda *a: None)\nsignal.alarm(1)\nreturn REACHED"),
    Attack("faulthandler", _READ, "import faulthandler\nfaulthandler._sigsegv()\nreturn REACHED"),
    # Native code
    Attack("ctypes", _RUN, "import ctypes\nreturn ctypes.string_at(0) and REACHED"),
    Attack("_ctypes", _RUN, "import _ctypes\nreturn _ctypes.dlopen('libc.so.6', 0) and REACHED"),
    Attack("an extension module", _RUN, "import importlib.machinery as m\nl = m.ExtensionFileLoader('x', 'FOLDER/x.so')\nreturn l.create_module(m.ModuleSpec('x', l)) and REACHED"),
    Attack("_imp.create_dynamic", _RUN, "import _imp, importlib.machinery as m\nreturn _imp.create_dynamic(m.ModuleSpec('x', None, origin='FOLDER/x.so')) and REACHED"),
    Attack("mmap", _RUN, "import mmap\nreturn mmap.mmap(-1, 4096) and REACHED"),
    Attack("numpy's native code", _RUN, "import numpy.core._multiarray_umath\nreturn REACHED"),
    Attack("forged bytecode", _RUN, "import types\nc = attack.__code__\nexec(c.replace(co_code=bytes([100, 255]) * 500, co_consts=(), co_stacksize=1))\nreturn REACHED"),
    Attack("a forged pointer", _RUN, "import gc\na = bytearray(8)\nm = memoryview(a)\nclass B(bytearray):\n    def __index__(self):\n        a.clear()\n        return 0\nreturn m[B()] and REACHED"),
    Attack("call the host's imports", _RUN, "import componentize_py_runtime as r\nout = []\nfor n in dir(r):\n    if n.startswith('call'):\n        for i in range(8):\n            out.append(getattr(r, n)(i, [], 1))\nreturn out and REACHED"),
    # Memory, time, floods
    Attack("memory by doubling", _REST, "x = [0]\nwhile True: x = x * 2"),
    Attack("memory at once", _REST, "return len(bytearray(1 << 31)) and REACHED"),
    Attack("memory in small pieces", _REST, "x = None\nwhile True: x = (x, object())"),
    Attack("a decompression bomb", _REST, "import zlib\nd = zlib.compress(bytes(1 << 24), 9)\nout = []\nwhile True: out.append(zlib.decompress(d))"),
    Attack("for ever", _REST, "while True: pass"),
    Attack("for ever in C", _REST, "return sum(iter(int, 1))"),
    Attack("for ever in a handler", _REST, "while True:\n    try:\n        while True: pass\n    except BaseException: pass"),
    Attack("a regular expression", _REST, "import re\nreturn re.match('(a+)+$', 'a' * 60 + 'b')"),
    Attack("a huge power", _REST, "return 9 ** 9 ** 9"),
    Attack("a huge decimal", _REST, "import decimal\ndecimal.getcontext().prec = 10**8\nreturn str(decimal.Decimal(2) ** 10**9)"),
    Attack("a huge format", _REST, "return '{:>2000000000}'.format(1)"),
    Attack("hash collisions", _REST, "m = sys.hash_info.modulus\nreturn len({i * m for i in range(200_000)})"),
    Attack("sleep", _REST, "import time\ntime.sleep(10**6)\nreturn None"),
    Attack("flood standard output", _REST, "while True: print('x' * 100_000)"),
    Attack("flood past the check", _REST, "for _ in range(5000):\n    try: sys.stdout.buffer.raw.write(b'x' * 10**6) if hasattr(sys.stdout.buffer, 'raw') else print('x' * 10**6)\n    except OSError: pass\nreturn None"),
    Attack("flood standard error", _REST, "while True: sys.stderr.write('x' * 100_000)"),
    Attack("flood the result", _REST, "return 'x' * (1 << 27)"),
    Attack("a result of many parts", _REST, "return [[]] * 3_000_000"),
    Attack("a result with no end", _REST, "class L(list):\n    def __iter__(self):\n        while True: yield 1\nreturn L([1])"),
    Attack("a deep result", _REST, "x = []\nfor _ in range(10**5): x = [x]\nreturn x"),
    Attack("endless recursion", _REST, "return attack()"),
    Attack("recursion without a limit", _REST, "import _testcapi" + "\nreturn REACHED"),
    Attack("recursion in C", _REST, "sys.setrecursionlimit(10**9)\nx = ()\nfor _ in range(10**6): x = (x,)\nreturn hash(x) and repr(x)"),
    Attack("recursion in the parser", _REST, "return eval('(' * 10**5)"),
    Attack("recursion in a pickle", _REST, "import pickle\nx = []\nfor _ in range(10**5): x = [x]\nreturn pickle.dumps(x)"),
    Attack("recursion while collecting", _REST, "class D:\n    def __init__(self, d): self.d = d\n    def __del__(self): self.d = None\nx = None\nfor _ in range(10**5): x = D(x)\ndel x\nreturn None"),
    Attack("a million exceptions", _REST, "e = None\nwhile True: e = ExceptionGroup('x', [e or ValueError()])"),
    # What was expected, and forged replies
    Attack("gc for the expected output", _EXPECTED, "import gc\nreturn [REACHED for o in gc.get_objects() if type(o) is dict and ('output' in o or 'tests' in o) and 'input' in o] and REACHED"),
    Attack("frames for the expected output", _EXPECTED, "f, found = sys._getframe(), []\nwhile f:\n    found += [k for k in f.f_locals if k in ('expected', 'output', 'tests', 'reference')] if f.f_code.co_name != 'run' else []\n    f = f.f_back\nreturn found and REACHED"),
    Attack("another call's memory", _EXPECTED, "import gc\nreturn [str(o) for o in gc.get_objects() if type(o) is dict and 'CANARY_OF_ANOTHER_CALL' in str(o.get('code', ''))[:80]] and None"),
    Attack("a forged reply", _EXPECTED, "import json\njson.encoder.JSONEncoder.encode = lambda *a, **k: '{\"value\": {\"value\": 1}, \"passed\": true}'\nreturn 0"),
    Attack("a reply that is no text", _EXPECTED, "import json\njson.encoder.JSONEncoder.encode = lambda *a, **k: 5\nreturn 0"),
    Attack("a reply that is no JSON", _EXPECTED, "import json\njson.encoder.JSONEncoder.encode = lambda *a, **k: '}{' * 1000\nreturn 0"),
    Attack("a reply nested 100,000 deep", _EXPECTED, "import json\njson.encoder.JSONEncoder.encode = lambda *a, **k: '[' * 100_000\nreturn 0"),
    Attack("a reply with NaN", _EXPECTED, "import json\njson.encoder.JSONEncoder.encode = lambda *a, **k: '{\"value\": NaN}'\nreturn 0"),
    Attack("a reply of four MiB and one", _EXPECTED, "import json\njson.encoder.JSONEncoder.encode = lambda *a, **k: 'x' * (4 * 1024**2 + 1)\nreturn 0"),
    Attack("a reply of lone surrogates", _EXPECTED, "import json\njson.encoder.JSONEncoder.encode = lambda *a, **k: '\"\\ud800\"'\nreturn 0"),
    Attack("a reply with two values", _EXPECTED, "import json\njson.encoder.JSONEncoder.encode = lambda *a, **k: '{\"error\": \"x\", \"value\": 1, \"value\": {\"text\": 1}}'\nreturn 0"),
    Attack("an exception's name", _EXPECTED, "raise type('{\"value\": 1}' * 99, (BaseException,), {})"),
    Attack("an exit code", _EXPECTED, "raise SystemExit('{\"value\": 1}')"),
    # What must not outlive the call
    Attack("patched builtins", _STAY, "for n in ('len', 'isinstance', 'str', 'int', 'compile', 'exec'):\n    setattr(builtins, n, lambda *a, **k: 'LEFT')\nreturn 0"),
    Attack("patched json", _STAY, "import json\njson.loads = json.dumps = lambda *a, **k: '{\"value\": \"LEFT\"}'\nreturn 0"),
    Attack("patched functions", _STAY, "import functions\nfunctions.FUNCTIONS['echo'] = functions.FUNCTIONS['code'] = lambda p: 'LEFT'\nreturn 0"),
    Attack("patched entry", _STAY, "import guest\nguest.WitWorld.call = lambda *a: '{\"value\": \"LEFT\"}'\nreturn 0"),
    Attack("patched encoder", _STAY, "import typed_json\ntyped_json.encode = typed_json.decode = lambda *a: 'LEFT'\nreturn 0"),
    Attack("patched modules", _STAY, "sys.modules.clear()\nreturn 0"),
    Attack("globals of the runner", _STAY, "import code_runner\ncode_runner.LEFT = 'LEFT'\nbuiltins.LEFT = 'LEFT'\nsys.LEFT = 'LEFT'\nreturn 0"),
    Attack("a finaliser", _STAY, "class D:\n    def __del__(self): builtins.LEFT = 'LEFT'\nbuiltins.d = D()\nreturn 0"),
    Attack("atexit", _STAY, "import atexit\natexit.register(print, 'LEFT')\nreturn 0"),
    Attack("hooks", _STAY, "sys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)\nsys.addaudithook(lambda *a: None)\nreturn 0"),
    Attack("the collector", _STAY, "import gc\ngc.callbacks.append(lambda *a: None)\ngc.unfreeze()\ngc.set_threshold(1)\nreturn 0"),
    Attack("the seed", _STAY, "import random\nrandom.seed(7)\nreturn random.random()"),
    Attack("the clock", _STAY, "import virtual\nvirtual.Clock.now = 0\nreturn 0"),
    Attack("the recursion limit", _STAY, "import virtual\nvirtual.MAX_RECURSION = 10**9\nsys.setrecursionlimit(50)\nreturn 0"),
    Attack("putenv", _STAY, "os.environ['LEFT'] = 'LEFT'\nreturn 0"),
    Attack("warm caches", _STAY, "import re, functools\nfor i in range(600): re.compile(str(i))\nreturn 0"),
    # What must not differ between machines and calls
    Attack("clocks", _DIFFER, "import time, datetime\nreturn [time.time(), time.perf_counter(), time.monotonic_ns(), time.process_time(), str(datetime.datetime.now()), str(datetime.date.today()), time.strftime('%c'), time.localtime()[:]]"),
    Attack("the clock below", _DIFFER, "import time\nreturn [time.clock_gettime(0), time.get_clock_info('time').resolution]"),
    Attack("the datetime below", _DIFFER, "import datetime\nreturn str(super(datetime.datetime, datetime.datetime).now())"),
    Attack("os.times", _DIFFER, "return list(os.times())"),
    Attack("randomness", _DIFFER, "import random, secrets, uuid\nreturn [random.random(), os.urandom(8).hex(), secrets.token_hex(8), str(uuid.uuid4()), random.SystemRandom().random()]"),
    Attack("the randomness below", _DIFFER, "import posix\nreturn posix.urandom(8).hex()"),
    Attack("a new generator", _DIFFER, "import _random\nreturn _random.Random().random()"),
    Attack("addresses and hashes", _DIFFER, "return [id(object()), hash('a'), repr(object()), list({'a', 'b', 'c', 'd'}), hash(object())]"),
    Attack("how much memory is left", _DIFFER, "x = []\ntry:\n    while True: x.append(bytearray(1 << 20))\nexcept MemoryError:\n    return len(x)"),
    Attack("how deep the stack is", _DIFFER, "def f(n):\n    try: return f(n + 1)\n    except RecursionError: return n\nsys.setrecursionlimit(10**6)\nreturn f(0)"),
    Attack("NaN's bits", _DIFFER, "import struct, math\nn = float('inf') - float('inf')\nreturn [struct.pack('<d', x).hex() for x in (n, -n, math.sqrt(2) * n, math.nan)]"),
    Attack("mathematics of the C library", _DIFFER, "import math, cmath\nreturn [math.sin(1e22), math.exp(0.1), math.gamma(0.3), math.erf(0.7), math.pow(2, 0.1), cmath.log(1 + 1j).imag, math.fma(0.1, 10, -1)]"),
    Attack("locale and encoding", _DIFFER, "import locale, time\nreturn [locale.getlocale(), locale.getpreferredencoding(), sys.getfilesystemencoding(), '%.2f' % 1.5, time.tzname, str('ß'.upper())]"),
    Attack("when garbage is collected", _DIFFER, "import gc\nout = []\nclass D:\n    def __del__(self): out.append(len(out) + seen[0])\nseen = [0]\nfor i in range(5000):\n    seen[0] = i\n    d = D()\n    d.d = d\nreturn [len(out), sum(out) % 1000, gc.get_count()]"),
)  # fmt: skip

PAYLOADS: Final[dict[str, tuple[str, Any]]] = {
    "no function": ("nothing", 1),
    "a dunder for a function": ("call", {"__class__": "os"}),
    "a payload of another type": ("code", [1, 2, 3]),
    "a payload of null": ("math_verify", None),
    "a kind that is none": ("code", {"kind": "exec", "code": "1", "input": 1}),
    "an entry with dunders": (
        "code",
        {"kind": "function", "code": "x = 1", "entry": "__builtins__.open", "input": ["FILE"]},
    ),
    "an entry of the runner's": ("code", {"kind": "function", "code": "", "entry": "__loader__.x", "input": []}),
    "a forged tag": (
        "code",
        {"kind": "function", "code": "def f(x): return x", "entry": "f", "input": [{"$eval": "1"}]},
    ),
    "a huge $int": (
        "code",
        {"kind": "function", "code": "def f(x): return x", "entry": "f", "input": [{"$int": "0x" + "f" * 10**6}]},
    ),
    "an unhashable $set": (
        "code",
        {"kind": "function", "code": "def f(x): return x", "entry": "f", "input": [{"$set": [[]]}]},
    ),
    "lone surrogates": ("code", {"kind": "stdin", "code": "print('\ud800', input())", "input": "\udfff"}),
    "NUL in code": ("code", {"kind": "stdin", "code": "print(1)\0", "input": "\0"}),
    "a payload over the limit": ("echo", "x" * (16 * 1024**2)),
    "an echo of four MiB": ("echo", "x" * (4 * 1024**2)),
    "a gym entry without metadata": ("reasoning_gym", {"dataset": "countdown", "entry": {}, "answer": "1"}),
    "a gym configuration with dunders": (
        "reasoning_gym",
        {"dataset": "chain_sum", "entry": {"answer": "1"}, "answer": "1", "config": {"__class__": 1}},
    ),
    "an instruction with dunders": (
        "instruction",
        {"text": "x", "mode": "strict", "instructions": [["__class__", {"self": 1}]]},
    ),
    "a format with braces": (
        "math_verify",
        {"gold": "}{0.__class__}", "answer": "{}", "gold_format": "latex", "answer_format": "x"},
    ),
}
"""Calls that no environment makes: what may come back is an error, or a value without a secret."""

RUNNING_ANSWERS: Final[dict[str, tuple[dict[str, Any], str, float]]] = {
    "countdown": (
        {"answer": "2*3 + 4", "metadata": {"numbers": [2, 3, 4], "target": 10}},
        "eval(chr(49)+chr(48)) + 0*(2+3+4)",
        0.05,
    ),
    "puzzle24": ({"answer": "4*6*1*1", "metadata": {}}, "int(eval(chr(50)+chr(52))) + 0*(1+2+3+4)", 0.01),
    "polynomial_multiplication": (
        {"answer": "x**2 - 1", "metadata": {}},
        "parse_expr(chr(120)+chr(42)+chr(42)+chr(50)+chr(45)+chr(49))",
        0.0,
    ),
    "spiral_matrix": ({"answer": "1 2 4 3", "metadata": {}}, "__import__('json').loads('[1, 2, 4, 3]')", 0.0),
    "n_queens": (
        {"answer": "_ Q\nQ _", "metadata": {"valid_answers": ["_ Q\nQ _"]}},
        "[list(x) for x in ('_Q', 'Q_')]",
        0.0,
    ),
    "simple_integration": (
        {"answer": "x**2 + C", "metadata": {"integrand": "2*x", "variable": "x"}},
        "(lambda: x**2)() + C",
        0.0,
    ),
    "string_insertion": ({"answer": "ABCDA", "metadata": {}}, "(c for c in open('FILE').read()) or 'ABCDA'", 0.0),
    "binary_matrix": ({"answer": "0 1\n1 0", "metadata": {}}, "[[i ^ j for i in (0, 1)] for j in (0, 1)]", 0.0),
}
"""reasoning-gym's datasets whose own scorers execute the answer: the entry, an answer that computes the right one, and
the most that a wrong answer gets."""
