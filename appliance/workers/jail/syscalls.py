"""Numbers of the system calls that a worker may do, as far as they exist: on x86-64 and on aarch64.

From the kernel's own lists (``asm/unistd_64.h`` and ``asm-generic/unistd.h``); a number is never given to another call.
What is not here is refused (see ``seccomp``), but to a worker that drives a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

AUDIT_ARCHITECTURES: Final[Mapping[str, int]] = MappingProxyType(
    {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
)
"""What the kernel calls an architecture where it says by which one a call came in."""

FILTER_CALLS: Final[Mapping[str, int]] = MappingProxyType({"x86_64": 317, "aarch64": 277})
"""The number of the call that puts a filter on."""

_READING: Final = """
read 0 63, readv 19 65, pread64 17 67, preadv 295 69, preadv2 327 286, write 1 64, writev 20 66,
close 3 57, close_range 436 436, lseek 8 62, fstat 5 80, stat 4 -, lstat 6 -, newfstatat 262 79,
statx 332 291, statfs 137 43, fstatfs 138 44, access 21 -, faccessat 269 48, faccessat2 439 439,
readlink 89 -, readlinkat 267 78, getdents64 217 61, getcwd 79 17, dup 32 23, dup2 33 -,
dup3 292 24, fadvise64 221 223, readahead 187 213
"""
"""Of files that are open, or that may be opened to be read."""

_MEMORY: Final = """
munmap 11 215, mprotect 10 226, mremap 25 216, madvise 28 233, msync 26 227,
mincore 27 232, brk 12 214, mlock 149 228, munlock 150 229, membarrier 324 283, mbind 237 235,
get_mempolicy 239 236, set_mempolicy 238 237, pkey_alloc 330 289,
pkey_mprotect 329 288, pkey_free 331 290
"""
"""Of memory that the kernel counts as its own."""

_THREADS: Final = """
futex 202 98, futex_waitv 449 449, set_robust_list 273 99, rseq 334 293,
set_tid_address 218 96, exit 60 93, exit_group 231 94, rt_sigaction 13 134, rt_sigprocmask 14 135,
rt_sigreturn 15 139, rt_sigpending 127 136, rt_sigtimedwait 128 137, rt_sigsuspend 130 133,
sigaltstack 131 132, restart_syscall 219 128, setitimer 38 103, getitimer 36 102, wait4 61 260,
poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72, epoll_create1 291 20, epoll_ctl 233 21,
epoll_wait 232 -, epoll_pwait 281 22, eventfd2 290 19, pipe2 293 59, nanosleep 35 101,
clock_nanosleep 230 115
"""
"""Of threads of its own, their signals and their waits."""

_KNOWING: Final = """
gettid 186 178, getpid 39 172, getppid 110 173, getuid 102 174, geteuid 107 175, getgid 104 176,
getegid 108 177, getgroups 115 158, getresuid 118 148, getresgid 120 150, getpgrp 111 -,
getpgid 121 155, getsid 124 156, clock_gettime 228 113, clock_getres 229 114, gettimeofday 96 169,
time 201 -, times 100 153, getrusage 98 165, sysinfo 99 179, uname 63 160, getcpu 309 168,
getrandom 318 278, getrlimit 97 163, arch_prctl 158 -
"""
"""Who it is, and what time it is."""

_PROCESSOR: Final = """
sched_yield 24 124, sched_getaffinity 204 123, sched_getscheduler 145 120, sched_getparam 143 121,
sched_getattr 315 275, sched_get_priority_max 146 125, sched_get_priority_min 147 126,
getpriority 140 141, ioprio_get 252 31
"""
"""Which processors and classes it has; changing them is judged."""

_LANE: Final = """
recvfrom 45 207, recvmsg 47 212, sendto 44 206, sendmsg 46 211, getsockname 51 204,
getpeername 52 205, getsockopt 55 209, shutdown 48 210
"""
"""Of the socket that it has."""

_BUILDING: Final = """
pwrite64 18 68, pwritev 296 70, pwritev2 328 287, fsync 74 82, fdatasync 75 83, ftruncate 77 46,
truncate 76 45, fallocate 285 47, sync_file_range 277 84, copy_file_range 326 285, unlink 87 -,
unlinkat 263 35, rename 82 -, renameat 264 38, renameat2 316 276
"""
"""Of files of its own making; for a worker that builds a form."""

_JUDGED: Final = """
clone 56 220, clone3 435 435, kill 62 129, tgkill 234 131, prctl 157 167, prlimit64 302 261,
fcntl 72 25, ioctl 16 29, open 2 -, openat 257 56, openat2 437 437, sched_setaffinity 203 122,
sched_setscheduler 144 119, sched_setparam 142 118, sched_setattr 314 274, setpriority 141 140,
ioprio_set 251 30, mmap 9 222, socket 41 198
"""
"""Allowed with some arguments only, or refused in a way of their own."""

_LEADING_OUTWARDS: Final = """
execve 59 221, execveat 322 281, ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271,
process_madvise 440 440, kcmp 312 272, migrate_pages 256 238, pidfd_open 434 434, pidfd_getfd 438 438,
pidfd_send_signal 424 424, tkill 200 130, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240,
unshare 272 97, setns 308 268, mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51,
fsopen 430 430, fsconfig 431 431, fsmount 432 432, fspick 433 433, open_tree 428 428, move_mount 429 429,
mount_setattr 442 442, open_by_handle_at 304 265, fanotify_init 300 262, quotactl 179 60,
quotactl_fd 443 443, swapon 167 224, swapoff 168 225, acct 163 89, bpf 321 280, perf_event_open 298 241,
io_uring_setup 425 425, io_uring_enter 426 426, io_uring_register 427 427, userfaultfd 323 282,
add_key 248 217, request_key 249 218, keyctl 250 219, init_module 175 105, finit_module 313 273,
delete_module 176 106, kexec_load 246 104, kexec_file_load 320 294, reboot 169 142, syslog 103 116,
iopl 172 -, ioperm 173 -, sethostname 170 161, setdomainname 171 162, settimeofday 164 170,
clock_settime 227 112, clock_adjtime 305 266, adjtimex 159 171, personality 135 92
"""
"""Refused to a worker whose runtime does more than can be listed, because it drives a device."""

_OTHERS: Final = """
connect 42 203, bind 49 200, listen 50 201, accept 43 202, accept4 288 242, socketpair 53 199, setsockopt 54 208,
sendmmsg 307 269, recvmmsg 299 243, fork 57 -, vfork 58 -, pipe 22 -, eventfd 284 -, creat 85 -, mkdir 83 -,
mkdirat 258 34, rmdir 84 -, link 86 -, linkat 265 37, symlink 88 -, symlinkat 266 36, mknod 133 -, mknodat 259 33,
chmod 90 -, fchmod 91 52, fchmodat 268 53, chown 92 -, fchown 93 55, fchownat 260 54, utimensat 280 88,
flock 73 32, chdir 80 49, fchdir 81 50, umask 95 166, sendfile 40 71, splice 275 76, memfd_create 319 279,
memfd_secret 447 447, mlock2 325 284, mlockall 151 230, munlockall 152 231, remap_file_pages 216 234,
move_pages 279 239, shmget 29 194, shmat 30 196, shmctl 31 195, semget 64 190, semop 65 193, msgget 68 186,
mq_open 240 180, setrlimit 160 164, setuid 105 146, setgid 106 144, setgroups 116 159, setresuid 117 147,
setresgid 119 149, setpgid 109 154, setsid 112 157, capget 125 90, capset 126 91, seccomp 317 277,
timer_create 222 107, timerfd_create 283 85, signalfd4 289 74, inotify_init1 294 26, inotify_add_watch 254 27,
pause 34 -, alarm 37 -, waitid 247 95, getxattr 191 8, fgetxattr 193 10,
vmsplice 278 75, tee 276 77, io_setup 206 0, io_submit 209 2, name_to_handle_at 303 264, set_thread_area 205 -,
get_robust_list 274 100, cachestat 451 451, map_shadow_stack 453 453, landlock_create_ruleset 444 444
"""
"""Only named, where a worker was refused one."""


def _numbers(text: str, column: int) -> Mapping[str, int]:
    rows = (entry.split() for entry in text.replace("\n", " ").split(","))
    return MappingProxyType({row[0]: int(row[column]) for row in rows if row[column] != "-"})


class Calls:
    """The calls of one architecture by their names; ``always`` need no look at their arguments."""

    def __init__(self, machine: str) -> None:
        column = 1 + tuple(AUDIT_ARCHITECTURES).index(machine)
        parts = (_READING, _MEMORY, _THREADS, _KNOWING, _PROCESSOR, _LANE)
        self.always: Mapping[str, int] = MappingProxyType(
            {name: number for part in parts for name, number in _numbers(part, column).items()}
        )
        self.building = _numbers(_BUILDING, column)
        self.judged = _numbers(_JUDGED, column)
        self.leading_outwards = _numbers(_LEADING_OUTWARDS, column)
        known = (*parts, _BUILDING, _JUDGED, _LEADING_OUTWARDS, _OTHERS)
        self._names = {number: name for part in known for name, number in _numbers(part, column).items()}

    def name_of(self, number: int) -> str:
        """Give the call's name, or its number where it has none here."""
        return self._names.get(number, f"number {number}")
