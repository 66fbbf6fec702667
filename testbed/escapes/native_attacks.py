"""What native programs try in the second sandbox: Python with numpy and raw system calls.

Each is a program's text after `PRELUDE`. It calls `reached()` once it gained what it wanted, and prints what it read.
FILE, FOLDER, PORT, LOCAL, ABSTRACT, VICTIM, WANTED and SEGMENT stand for the canaries that `native_escapes` sets up.
"""

# ruff: noqa: E501 - a program is a line

from __future__ import annotations

from typing import Final

REACHED: Final = "REACHED"

PRELUDE: Final = """
import ctypes, errno, mmap, os, resource, signal, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
def call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result
def check(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), "refused")
    return result
def reached():
    print("REACHED", flush=True)
def each(tries):
    for one in tries:
        try:
            one()
            reached()
        except OSError:
            pass
def make(path):
    with open(path, "wb") as file:
        file.write(b"x" * 4096)
buffer = ctypes.create_string_buffer(65536)
"""

ATTACKS: Final[dict[str, str]] = {
    # Files of the host
    "open a file": "print(open('FILE').read())",
    "open it from /proc/1/root": "print(open('/proc/1/root' + 'FILE').read())",
    "open it from /proc/self/cwd": "print(open('/proc/self/cwd/../../..' + 'FILE').read())",
    "climb out with ..": "print(open('../' * 40 + 'FILE'.lstrip('/')).read())",
    "a symbolic link to it": "os.symlink('FILE', '/task/link'); print(open('/task/link').read())",
    "a hard link to it": "os.link('FILE', '/task/link'); reached()",
    "users of the host": "print(open('/etc/passwd').read()); reached()",
    "list a folder": "print(os.listdir('FOLDER')); reached()",
    "stat a file": "os.stat('FILE'); reached()",
    "the host's programs": "os.stat('/usr/bin/env'); reached()",
    "openat2": "how = struct.pack('<QQQ', 0, 0, 0); fd = call(437, -100, b'FILE', how, 24); print(os.read(fd, 99).decode())",
    "open by a handle": "handle = struct.pack('<II', 8, 1) + bytes(8); call(304, os.open('/', 0), handle, 0); reached()",
    "ask for a handle": "handle = ctypes.create_string_buffer(struct.pack('<II', 128, 0), 256); call(303, -100, b'/task', handle, buffer, 0); reached()",
    # Writing
    "write a file": "open('FILE', 'w').write('x'); reached()",
    "append to the interpreter's library": "open(os.__file__, 'a').write('#x'); reached()",
    "a module in the interpreter's library": "make(os.path.dirname(os.__file__) + '/sitecustomize.py'); reached()",
    "a compiled module beside the library": "os.mkdir(os.path.dirname(os.__file__) + '/__pycache__'); reached()",
    "a file in numpy": "import numpy; make(os.path.dirname(numpy.__file__) + '/x.py'); reached()",
    "change its own program": "make('/task/program.py'); reached()",
    "change what images say": "make('/image.json'); reached()",
    "a file in its folder": "make('/task/new'); reached()",
    "a file in the root": "make('/new'); reached()",
    "leftovers in /tmp": "os.makedirs('/tmp', exist_ok=True); make('/tmp/left'); reached()",
    "leftovers in /dev/shm": "make('/dev/shm/left-TOKEN'); reached()",
    "leftovers in /var/tmp": "make('/var/tmp/left-TOKEN'); reached()",
    "leftovers at home": "make(os.path.expanduser('~') + '/left-TOKEN'); reached()",
    "a file without a name": "os.write(os.open('/task', os.O_TMPFILE | os.O_RDWR), b'x'); reached()",
    "a file in memory": "os.write(os.memfd_create('x'), b'x'); reached()",
    "fill a file in memory": "fd = os.memfd_create('x'); [os.write(fd, bytes(1 << 24)) for _ in range(256)]; reached()",
    "a device node": "os.mknod('/task/mem', 0o20666, os.makedev(1, 1)); reached()",
    "a pipe with a name": "os.mkfifo('/task/fifo'); reached()",
    "devices of the host": "each([lambda n=n: os.open('/dev/' + n, 0) for n in ('mem', 'kmsg', 'kvm', 'vda', 'sda', 'fuse', 'net/tun', 'null')])",
    "change a file's mode": "os.chmod('/task/program.py', 0o777); reached()",
    "change a file's owner": "os.chown('/task/program.py', 0, 0); reached()",
    "an attribute of a file": "os.setxattr('/task/program.py', 'user.x', b'x'); reached()",
    "delete its program": "os.unlink('/task/program.py'); reached()",
    "rename the library": "os.rename(os.path.dirname(os.__file__), '/python/gone'); reached()",
    "change its input": "os.pwrite(0, b'x', 0); reached()",
    "lengthen its input": "os.ftruncate(0, 1 << 30); reached()",
    "map its input to write": "m = mmap.mmap(0, 1); m[0] = 1; reached()",
    "a huge file with holes": "os.ftruncate(1, 1 << 40); reached()",
    "far beyond its output": "os.lseek(1, 1 << 40, 0); os.write(1, b'x'); print(); os.lseek(1, 0, 0); reached()",
    "watch files": "check(libc.inotify_init1(0)); reached()",
    "watch the host": "call(300, 0, 0); reached()",
    # Descriptors
    "descriptors that it inherited": "[(os.fstat(n), reached()) for n in range(3, 1024) if not FAILS(os.fstat, n)]".replace("FAILS", "(lambda f, n: _fails(f, n))"),
    "read from every descriptor": "[print(os.pread(n, 4096, 0)) for n in range(3, 1024) if not _fails(os.fstat, n)]",
    "forge the status of its end": "[(os.write(n, b'{\"exit-code\": 0}\\n'), reached()) for n in range(3, 256) if not _fails(os.fstat, n)]",
    "take a descriptor of another": "call(438, call(434, VICTIM, 0), 1, 0); reached()",
    # The environment and other processes
    "the environment": "print(dict(os.environ))",
    "its environment in /proc": "print(open('/proc/self/environ', 'rb').read()); reached()",
    "environments in /proc": "print([open(f'/proc/{n}/environ', 'rb').read() for n in os.listdir('/proc') if n.isdecimal()]); reached()",
    "mount /proc": "check(libc.mount(b'proc', b'/task', b'proc', 0, None)); reached()",
    "its own memory in /proc": "open('/proc/self/mem', 'r+b'); reached()",
    "another's memory in /proc": "open('/proc/VICTIM/mem', 'rb').seek(WANTED); reached()",
    "read another's memory": "vec = struct.pack('<QQ', ctypes.addressof(buffer), 32); call(310, VICTIM, vec, 1, struct.pack('<QQ', WANTED, 32), 1, 0); print(buffer.raw[:32].decode())",
    "write another's memory": "vec = struct.pack('<QQ', ctypes.addressof(buffer), 1); call(311, VICTIM, vec, 1, struct.pack('<QQ', WANTED, 1), 1, 0); reached()",
    "trace another": "call(101, 16, VICTIM, 0, 0); reached()",
    "be traced": "call(101, 0, 0, 0, 0); reached()",
    "compare with another": "call(312, os.getpid(), VICTIM, 0, 0, 0); reached()",
    "signal another": "os.kill(VICTIM, 0); reached()",
    "kill another": "os.kill(VICTIM, signal.SIGKILL); reached()",
    "kill its parent": "os.kill(os.getppid(), signal.SIGTERM); reached()",
    "kill all": "os.kill(-1, signal.SIGTERM); reached()",
    "a signal to a thread": "call(234, VICTIM, VICTIM, 0); reached()",
    "a signal with a value": "call(129, VICTIM, 10, bytes(128)); reached()",
    "a descriptor of another process": "os.pidfd_open(VICTIM); reached()",
    "another's limits": "resource.prlimit(VICTIM, resource.RLIMIT_NOFILE, (4, 4)); reached()",
    "another's priority": "os.setpriority(os.PRIO_PROCESS, VICTIM, 19); reached()",
    "another's namespaces": "check(libc.setns(os.open('/proc/VICTIM/ns/net', 0), 0)); reached()",
    "real time": "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)); reached()",
    "all processors": "os.sched_setaffinity(0, range(1024)); reached()",
    # Processes that outlive it
    "fork": "os.fork() and reached()",
    "double fork": "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(120)\n    os._exit(0)\nreached()",
    "vfork": "import subprocess; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(120)']); reached()",
    "posix_spawn": "os.posix_spawn(sys.executable, [sys.executable, '-c', 'import time; time.sleep(120)'], {}); reached()",
    "clone": "call(56, 17, 0, 0, 0, 0) and reached()",
    "clone3": "arguments = struct.pack('<11Q', 0, 0, 0, 0, 17, *[0] * 6); call(435, arguments, 88) and reached()",
    "a thread": "import threading; threading.Thread(target=time.sleep, args=(0,)).start(); reached()",
    "multiprocessing": "import multiprocessing as m; p = m.get_context('fork').Process(target=time.sleep, args=(0,)); p.start(); reached()",
    "a fork bomb": "n = 0\nwhile n < 10**5:\n    try:\n        os.fork(); reached()\n    except OSError:\n        pass\n    n += 1",
    "a session of its own": "os.setsid(); reached()",
    "a timer": "signal.setitimer(signal.ITIMER_REAL, 100); reached()",
    "a timer of the kernel's": "call(222, 0, None, buffer); reached()",
    "become a sleeper": "os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(10**6)'])",
    "a program of the host's": "os.execv('/usr/bin/env', ['env']); reached()",
    "a setuid program": "os.execv('/bin/su', ['su', '-c', 'true'])",
    "a program in memory": "fd = os.memfd_create('x'); os.write(fd, open(sys.executable, 'rb').read()); os.execve(fd, ['x', '-c', 'print(\"REACHED\")'], {})",
    "LD_PRELOAD in what it becomes": "os.execve(sys.executable, [sys.executable, '-c', 'import os; print(os.environ.get(\"LEFT\"))'], {'LD_PRELOAD': '/task/program.py', 'LEFT': 'x'})",
    # Network
    "connect": "socket.create_connection(('127.0.0.1', PORT), 5); reached()",
    "connect to the world": "socket.create_connection(('1.1.1.1', 53), 5); reached()",
    "IPv6": "socket.socket(socket.AF_INET6); reached()",
    "UDP": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT)); reached()",
    "a local socket": "socket.socket(socket.AF_UNIX).connect('LOCAL'); reached()",
    "an abstract socket": "socket.socket(socket.AF_UNIX).connect(chr(0) + 'ABSTRACT'); reached()",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0); reached()",
    "packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW); reached()",
    "raw IP": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); reached()",
    "vsock": "call(41, 40, 1, 0); reached()",
    "every family": "each([lambda n=n: call(41, n, t, 0) for n in range(46) for t in (1, 2, 3, 5)])".replace("lambda n=n:", "lambda n=n, t=t:"),
    "a pair of sockets": "socket.socketpair(); reached()",
    "listen": "socket.create_server(('127.0.0.1', 0)); reached()",
    "a pipe": "os.pipe(); reached()",
    "names": "print(socket.getaddrinfo('localhost', 80)); reached()",
    # The kernel
    "io_uring": "call(425, 8, bytes(120)); reached()",
    "bpf": "call(321, 0, struct.pack('<IIII', 1, 4, 4, 1) + bytes(112), 128); reached()",
    "keyctl": "call(250, 0, -3, 1); reached()",
    "add a key": "call(248, b'user', b'x', b'y', 1, -2); reached()",
    "request a key": "call(249, b'user', b'x', 0, -2); reached()",
    "performance counters": "call(298, struct.pack('<IIQ', 1, 120, 0) + bytes(104), 0, -1, -1, 0); reached()",
    "userfaultfd": "call(323, 1); reached()",
    "personality": "call(135, 0x0400000); reached()",
    "no more random addresses": "call(135, 0x0040000); reached()",
    "load a module": "call(175, b'x', 1, b''); reached()",
    "load a module of a file": "call(313, 0, b'', 0); reached()",
    "load a kernel": "call(246, 0, 0, 0, 0); reached()",
    "restart the machine": "call(169, 0xfee1dead, 672274793, 0, 0); reached()",
    "swap": "call(167, b'/task/program.py', 0); reached()",
    "the time of the machine": "call(227, 0, bytes(16)); reached()",
    "the name of the machine": "socket.sethostname('x'); reached()",
    "the kernel's messages": "call(103, 3, buffer, 4096); print(buffer.value[:99]); reached()",
    "account for processes": "call(163, 0); reached()",
    "ports of the machine": "call(172, 3); reached()",
    "descriptor tables of the processor": "call(154, 0, buffer, 64); reached()",
    "another base of segments": "call(158, 0x1001, 0); reached()",
    "mount": "check(libc.mount(b'tmpfs', b'/task', b'tmpfs', 0, None)); reached()",
    "mount again to write": "check(libc.mount(None, b'/', None, 4096 | 32, None)); make('/new'); reached()",
    "unmount": "check(libc.umount2(b'/', 2)); reached()",
    "the new calls for mounts": "each([lambda: call(428, -100, b'/', 1), lambda: call(430, b'tmpfs', 0), lambda: call(433, -100, b'/', 0), lambda: call(442, -100, b'/', 0, bytes(32), 32)])",
    "change the root": "os.chroot('/task'); reached()",
    "chroot and climb out": "os.mkdir('/task/x'); os.chroot('/task/x'); [os.chdir('..') for _ in range(40)]; os.chroot('.'); print(open('FILE').read())",
    "pivot the root": "call(155, b'/task', b'/task'); reached()",
    "a new user namespace": "check(libc.unshare(0x10000000)); reached()",
    "new namespaces": "each([lambda f=f: check(libc.unshare(f)) for f in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x20000000, 0x40000000)])",
    "a user namespace by clone": "call(56, 0x10000000 | 17, 0, 0, 0, 0) >= 0 and reached()",
    "become root": "each([lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setresuid(0, 0, 0), lambda: os.setgroups([0])])",
    "capabilities": "call(126, struct.pack('<II', 0x20080522, 0), struct.pack('<6I', *[0xffffffff] * 6)); reached()",
    "lift the filter": "each([lambda: check(libc.prctl(22, 0, 0, 0, 0)), lambda: call(317, 0, 0, 0)])",
    "a filter of its own": "check(libc.prctl(38, 1, 0, 0, 0)); call(317, 1, 0, struct.pack('<HxxxxxxQ', 1, ctypes.addressof(ctypes.create_string_buffer(struct.pack('<HBBI', 6, 0, 0, 0x7fff0000))))); reached()",
    "dump itself": "check(libc.prctl(4, 1, 0, 0, 0)); reached()",
    "let others trace it": "check(libc.prctl(0x59616d61, -1, 0, 0, 0)); reached()",
    "calls of 32 bits": "code = bytes.fromhex('b814000000cd80c3'); m = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 7); m.write(code); ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))() > 0 and reached()",
    "the other numbers of calls": "call(0x40000000 + 41, 1, 1, 0); reached()",
    # Memory between processes
    "shared memory of System V": "at = libc.shmat; at.restype = ctypes.c_void_p; print(ctypes.string_at(at(SEGMENT, 0, 4096), 32).decode())",
    "make shared memory of System V": "check(libc.shmget(0, 4096, 0o1600)); reached()",
    "semaphores": "check(libc.semget(0, 1, 0o1600)); reached()",
    "message queues": "check(libc.msgget(0, 0o1600)); reached()",
    "message queues of POSIX": "call(240, b'left', 0o102, 0o600, 0); reached()",
    "shared memory": "mmap.mmap(-1, 4096); reached()",
    "shared memory beyond the limit": "m = mmap.mmap(-1, 2 << 30); [m.__setitem__(i, 1) for i in range(0, 2 << 30, 4096)]; reached()",
    # The terminal
    "type into the terminal": "import fcntl; each([lambda n=n: fcntl.ioctl(n, 0x5412, b'x') for n in range(3)])",
    "paste into the console": "import fcntl; fcntl.ioctl(0, 0x541C, b'\\x02'); reached()",
    "open the terminal": "os.open('/dev/tty', os.O_RDWR); reached()",
    "a terminal of its own": "os.openpty(); reached()",
    "be told of its input": "import fcntl; fcntl.fcntl(0, 8, os.getpid()); reached()",
    "a lease": "import fcntl; fcntl.fcntl(os.open('/task/program.py', 0), 1024, 0); reached()",
    "a lock": "import fcntl; fcntl.flock(os.open('/task/program.py', 0), 2); reached()",
    # Floods and bombs
    "memory at once": "x = bytearray(2 << 30); reached()",
    "memory in pieces": "x = []\nwhile len(x) < 2048:\n    x.append(bytearray(b'x') * (1 << 20))\nreached()",
    "memory of numpy": "import numpy; x = numpy.ones(1 << 28); reached()",
    "memory in maps": "[libc.mmap(None, ctypes.c_size_t(1 << 20), 3, 0x8022, -1, 0) not in (None, 2**64 - 1) or sys.exit(0) for _ in range(2048)]; reached()",
    "memory that no limit counts": "check(libc.mlockall(3)); reached()",
    "huge pages": "call(9, 0, 1 << 21, 3, 0x40022, -1, 0) > 0 and reached()",
    "all descriptors": "x = [os.open('/task/program.py', 0) for _ in range(10**5)]; reached()",
    "flood the output": "while True: os.write(1, b'x' * 65536)",
    "flood the errors": "while True: os.write(2, b'x' * 65536)",
    "for ever": "while True: pass",
    "for ever with handlers": "[signal.signal(n, lambda *a: None) for n in range(1, 32) if n not in (9, 19)]\nwhile True:\n    try:\n        while True: pass\n    except BaseException: pass",
    "for ever in numpy": "import numpy\nx = numpy.ones((1000, 1000))\nwhile True: x = x @ x / 1000",
    "sleep for ever": "time.sleep(10**6)",
    "stop": "os.kill(os.getpid(), signal.SIGSTOP); time.sleep(10**6)",
    "raise its limits": "each([lambda n=n: resource.setrlimit(n, (-1, -1)) for n in range(16)])",
    "endless recursion": "sys.setrecursionlimit(10**9)\ndef f(n): return [f(n + 1) for _ in range(1)]\nf(0)",
    "overflow the stack": "import itertools\nx = ()\nfor _ in range(10**6): x = (x,)\nhash(x)",
    "dump its core": "resource.setrlimit(resource.RLIMIT_CORE, (-1, -1)); reached(); ctypes.string_at(0)",
    "crash": "ctypes.string_at(0)",
    "abort": "os.abort()",
    "a wrong instruction": "m = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 7); m.write(bytes.fromhex('0f0b')); ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()",
    "imitate a kill": "os._exit(137)",
    "say that it never began": "sys.stderr.write('bwrap: execvp: no such file'); os._exit(1)",
}  # fmt: skip
"""Where a machine numbers a call otherwise, that call is refused too: what is allowed is a list."""

_FAILS: Final = """
def _fails(function, *arguments):
    try:
        function(*arguments)
    except OSError:
        return True
    return False
"""

CONTROLS: Final = (
    *("open a file", "climb out with ..", "users of the host", "list a folder", "stat a file", "the host's programs"),
    *("openat2", "write a file", "leftovers in /dev/shm", "leftovers in /var/tmp", "a file in memory", "watch files"),
    *("the environment", "its environment in /proc", "its own memory in /proc", "signal another", "kill another"),
    *("read another's memory", "a descriptor of another process", "another's priority", "fork", "a thread", "clone"),
    *("double fork", "vfork", "posix_spawn", "connect", "UDP", "a local socket", "an abstract socket", "netlink"),
    *("a pair of sockets", "listen", "a pipe", "names", "a session of its own", "a timer", "no more random addresses"),
    *("shared memory of System V", "make shared memory of System V", "semaphores", "message queues", "shared memory"),
    *("a terminal of its own", "be told of its input", "memory at once", "all processors", "every family"),
)
"""Attacks that harm nobody and succeed without the walls: what shows that refusing them is the walls' doing."""


def program(kind: str, **canaries: object) -> str:
    """Return the text of an attack, with the canaries in the place of their names."""
    text = ATTACKS[kind]
    for name, value in canaries.items():
        text = text.replace(name, str(value))
    lines = "".join(f"    {line}\n" for line in text.splitlines())
    return f"{PRELUDE}{_FAILS}\ntry:\n{lines}except BaseException as error:\n    print(type(error).__name__, error)\n"
