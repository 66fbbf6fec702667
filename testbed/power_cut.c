/* Keep what a power failure would leave: after each fsync or fdatasync of a file below $SYNCED_FROM, a copy of it, and of
 * a folder there, what is in it: a line for each name, after its key. They are files of $SYNCED_TO, named by the key of what
 * was synced: its inode and its time of birth, since inodes are used again. Of a folder `.names` is behind it, and
 * $SYNCED_FROM itself is `root.names`. Loaded into a process by LD_PRELOAD (power_cut.py). */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_ulong copies;

static void copy_file(int from, int to) {
    char block[1 << 16];
    off_t at = 0;
    ssize_t got;
    while ((got = pread(from, block, sizeof block, at)) > 0) {
        if (pwrite(to, block, (size_t)got, at) != got) abort();
        at += got;
    }
    if (got < 0) abort();
}

static int find_key(int folder, const char *name, int flags, char *key, size_t room) {
    struct statx about;
    if (statx(folder, name, flags, STATX_INO | STATX_BTIME, &about)) return 0;
    long long born = about.stx_btime.tv_sec * 1000000000ll + about.stx_btime.tv_nsec;
    snprintf(key, room, "%llu-%lld", (unsigned long long)about.stx_ino, born);
    return 1;
}

static void write_names(int from, int to) {
    DIR *folder = fdopendir(from);
    struct dirent *entry;
    char key[64];
    if (!folder) abort();
    while ((entry = readdir(folder)))
        if (find_key(dirfd(folder), entry->d_name, AT_SYMLINK_NOFOLLOW, key, sizeof key))
            dprintf(to, "%s %s\n", key, entry->d_name);
    closedir(folder);
}

static void keep(int synced) {
    const char *from = getenv("SYNCED_FROM"), *into = getenv("SYNCED_TO");
    char link[64], key[64] = "root", path[PATH_MAX] = "", target[PATH_MAX], made[PATH_MAX + 32];
    struct stat about;
    snprintf(link, sizeof link, "/proc/self/fd/%d", synced);
    if (!from || !into || readlink(link, path, sizeof path - 1) < 0 || fstat(synced, &about)) return;
    size_t length = strlen(from);
    if (strncmp(path, from, length) || (path[length] && path[length] != '/')) return;
    if (path[length] && !find_key(synced, "", AT_EMPTY_PATH, key, sizeof key)) abort();
    const char *names = S_ISDIR(about.st_mode) ? ".names" : "";
    snprintf(target, sizeof target, "%s/%s%s", into, key, names);
    snprintf(made, sizeof made, "%s.%d.%lu", target, getpid(), atomic_fetch_add(&copies, 1));
    int to = open(made, O_WRONLY | O_CREAT | O_EXCL, 0600);
    /* Closing a second descriptor of SQLite's would end its locks: one that can be read is read itself. */
    int is_readable = !*names && (fcntl(synced, F_GETFL) & O_ACCMODE) != O_WRONLY;
    int read_from = is_readable ? synced : open(link, O_RDONLY);
    if (to < 0 || read_from < 0) abort();
    if (*names) write_names(read_from, to); /* and close it */
    else copy_file(read_from, to);
    if (!*names && !is_readable) close(read_from);
    close(to);
    if (rename(made, target)) abort();
}

int fsync(int descriptor) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    int failed = real(descriptor);
    if (!failed) keep(descriptor);
    return failed;
}

int fdatasync(int descriptor) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    int failed = real(descriptor);
    if (!failed) keep(descriptor);
    return failed;
}
