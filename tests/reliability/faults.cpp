#include "reliability/faults.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "reliability/file_log.h"

namespace witan::test {
namespace {

using Kind = Operation::Kind;

std::atomic<bool> armed = false;
std::mutex mutex;  // guards the variables below
std::string root;
Fault planned;
std::vector<std::string> seen;

std::string path_of(int fd) {
  char path[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const long length = ::syscall(SYS_readlinkat, AT_FDCWD, link.c_str(), path, sizeof path);
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : std::string();
}

std::string path_of(int folder, const char* path) {
  return path[0] == '/' || folder == AT_FDCWD ? std::string(path) : path_of(folder) + "/" + path;
}

bool keeps(std::string_view call) {
  static constexpr std::string_view kKeep[] = {"write",  "ftruncate", "fsync", "fdatasync",
                                               "rename", "renameat2", "mkdir", "open to write"};
  return std::ranges::find(kKeep, call) != std::end(kKeep);
}

// Whether the call must fail; errno says why.
bool hit(const char* call, const std::string& path) {
  if (!path.starts_with(root)) return false;
  const std::lock_guard lock(mutex);
  if (planned.writes_only && !keeps(call)) return false;
  seen.push_back(std::string(call) + " " + path.substr(root.size()));
  const auto number = static_cast<int64_t>(seen.size());
  if (planned.at < 1 || number < planned.at) return false;
  if (number > planned.at && !planned.lasting && !planned.half) return false;
  if (number == planned.at && planned.half && std::string_view(call) == "write") return false;
  if (planned.error == 0) ::kill(::getpid(), SIGKILL);
  errno = planned.error;
  return true;
}
bool hit_path(const char* call, int folder, const char* path) {
  return armed && path && hit(call, path_of(folder, path));
}
bool hit_fd(const char* call, int fd) {
  return armed && hit(call, path_of(fd));
}

// Whether this write, which hit() let pass, is the one to write half of its bytes.
bool halved(int fd) {
  if (!armed || !planned.half || !path_of(fd).starts_with(root)) return false;
  const std::lock_guard lock(mutex);
  return static_cast<int64_t>(seen.size()) == planned.at;
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

mode_t mode_of(int flags, va_list list) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0;
}

// Makes the call and logs it as this operation if it succeeds.
template <class Call>
auto logged(Kind kind, int folder, const char* path, const Call& call) {
  return OperationLog::get().made(call, [&] { return Operation{kind, path_of(folder, path)}; });
}
template <class Call>
auto logged_fd(Kind kind, int fd, uint64_t offset, const Call& call) {
  return OperationLog::get().made(call, [&] { return Operation{kind, path_of(fd), {}, offset}; });
}

int open_at(const char* call, int folder, const char* path, int flags, mode_t mode) {
  const bool to_write = planned.writes_only && (flags & (O_WRONLY | O_RDWR)) != 0;
  if (hit_path(to_write ? "open to write" : call, folder, path)) return -1;
  const auto open = [&] { return static_cast<int>(::syscall(SYS_openat, folder, path, flags, mode)); };
  const auto is_there = [&] { return ::syscall(SYS_faccessat, folder, path, F_OK) == 0; };
  if ((flags & O_TRUNC) != 0 && is_there()) return logged(Kind::resize, folder, path, open);
  if ((flags & O_CREAT) != 0 && !is_there()) return logged(Kind::create, folder, path, open);
  return open();
}

// Flushing matters only in a power failure and takes most of the time of these tests, so the file is flushed only by
// `make reliability`, which compares calls with the kernel's.
int flush(long number, int fd) {
  static const bool flushes = std::getenv("WITAN_RELIABILITY") != nullptr;
  return flushes ? static_cast<int>(::syscall(number, fd)) : 0;
}

// The offset of the next write.
uint64_t place_of(int fd) {
  const bool appends = (::fcntl(fd, F_GETFL) & O_APPEND) != 0;
  struct stat status {};
  if (appends) return ::syscall(SYS_fstat, fd, &status) == 0 ? static_cast<uint64_t>(status.st_size) : 0;
  return static_cast<uint64_t>(::lseek(fd, 0, SEEK_CUR));
}

int rename_at(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  const auto rename = [&] {
    return static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
  };
  const Kind kind = (flags & RENAME_EXCHANGE) != 0 ? Kind::exchange : Kind::rename;
  return OperationLog::get().made(rename, [&] {
    return Operation{kind, path_of(from_folder, from), path_of(to_folder, to)};
  });
}

}  // namespace

void arm(const fs::path& folder, const Fault& fault) {
  const std::lock_guard lock(mutex);
  root = folder.string();
  planned = fault;
  seen.clear();
  armed = true;
  if (fault.at < 0) ::dprintf(STDOUT_FILENO, "begin\n");
}

std::vector<std::string> calls_seen() {
  const std::lock_guard lock(mutex);
  return seen;
}

}  // namespace witan::test

namespace test = witan::test;

// The calls through which Witan and libstdc++ access files. (scripts/reliability/strace.sh compares them with the
// kernel's.)
#define WITAN_OPEN(name)                                      \
  int name(const char* path, int flags, ...) {                \
    va_list list;                                             \
    va_start(list, flags);                                    \
    const mode_t mode = test::mode_of(flags, list);           \
    va_end(list);                                             \
    return test::open_at(#name, AT_FDCWD, path, flags, mode); \
  }
#define WITAN_OPENAT(name)                                  \
  int name(int folder, const char* path, int flags, ...) {  \
    va_list list;                                           \
    va_start(list, flags);                                  \
    const mode_t mode = test::mode_of(flags, list);         \
    va_end(list);                                           \
    return test::open_at(#name, folder, path, flags, mode); \
  }
#define WITAN_STAT(name, Status)                               \
  int name(const char* path, struct Status* status) noexcept { \
    if (test::hit_path(#name, AT_FDCWD, path)) return -1;      \
    return test::next<decltype(name)>(#name)(path, status);    \
  }

extern "C" {

WITAN_OPEN(open)
WITAN_OPEN(open64)
WITAN_OPENAT(openat)
WITAN_OPENAT(openat64)
WITAN_STAT(stat, stat)
WITAN_STAT(stat64, stat64)
WITAN_STAT(lstat, stat)
WITAN_STAT(lstat64, stat64)

int fstat(int fd, struct stat* status) noexcept {
  if (test::hit_fd("fstat", fd)) return -1;
  return test::next<decltype(fstat)>("fstat")(fd, status);
}
int statvfs(const char* path, struct statvfs* status) noexcept {
  if (test::hit_path("statvfs", AT_FDCWD, path)) return -1;
  return test::next<decltype(statvfs)>("statvfs")(path, status);
}
DIR* opendir(const char* path) {
  if (test::hit_path("opendir", AT_FDCWD, path)) return nullptr;
  return test::next<decltype(opendir)>("opendir")(path);
}
struct dirent* readdir(DIR* folder) {
  if (test::hit_fd("readdir", ::dirfd(folder))) return nullptr;
  return test::next<decltype(readdir)>("readdir")(folder);
}
ssize_t read(int fd, void* bytes, size_t count) {
  if (test::hit_fd("read", fd)) return -1;
  return ::syscall(SYS_read, fd, bytes, count);
}
ssize_t write(int fd, const void* bytes, size_t count) {
  if (test::hit_fd("write", fd)) return -1;
  if (test::halved(fd)) count -= count / 2;
  const auto put = [&] { return ::syscall(SYS_write, fd, bytes, count); };
  return test::OperationLog::get().made(put, [&] {
    return test::Operation{
        test::Kind::write, test::path_of(fd), {}, test::place_of(fd), {static_cast<const char*>(bytes), count}};
  });
}
int ftruncate(int fd, off_t size) noexcept {
  if (test::hit_fd("ftruncate", fd)) return -1;
  return test::logged_fd(test::Kind::resize, fd, static_cast<uint64_t>(size),
                         [&] { return static_cast<int>(::syscall(SYS_ftruncate, fd, size)); });
}
void* mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
  if (fd >= 0 && test::hit_fd("mmap", fd)) return MAP_FAILED;
  return reinterpret_cast<void*>(::syscall(SYS_mmap, address, bytes, protection, flags, fd, offset));
}
int fsync(int fd) {
  if (test::hit_fd("fsync", fd)) return -1;
  if (test::armed && test::path_of(fd).find(test::planned.slow) != std::string::npos)
    ::usleep(static_cast<useconds_t>(1000 * test::planned.slow_ms));
  return test::logged_fd(test::Kind::sync, fd, 0, [&] { return test::flush(SYS_fsync, fd); });
}
int fdatasync(int fd) {
  if (test::hit_fd("fdatasync", fd)) return -1;
  return test::logged_fd(test::Kind::sync, fd, 0, [&] { return test::flush(SYS_fdatasync, fd); });
}
int close(int fd) {
  const bool fails = test::hit_fd("close", fd);  // a failed close releases the descriptor too
  const int error = errno;
  const auto result = static_cast<int>(::syscall(SYS_close, fd));
  if (!fails) return result;
  errno = error;
  return -1;
}
int rename(const char* from, const char* to) noexcept {
  if (test::hit_path("rename", AT_FDCWD, from)) return -1;
  return test::rename_at(AT_FDCWD, from, AT_FDCWD, to, 0);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  if (test::hit_path("renameat2", from_folder, from)) return -1;
  return test::rename_at(from_folder, from, to_folder, to, flags);
}
int mkdir(const char* path, mode_t mode) noexcept {
  if (test::hit_path("mkdir", AT_FDCWD, path)) return -1;
  return test::logged(test::Kind::make_folder, AT_FDCWD, path,
                      [&] { return static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode)); });
}
int unlinkat(int folder, const char* path, int flags) noexcept {
  if (test::hit_path("unlinkat", folder, path)) return -1;
  return test::logged(test::Kind::remove, folder, path,
                      [&] { return static_cast<int>(::syscall(SYS_unlinkat, folder, path, flags)); });
}
int unlink(const char* path) noexcept {
  return unlinkat(AT_FDCWD, path, 0);
}
int rmdir(const char* path) noexcept {
  return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}
int remove(const char* path) noexcept {
  const int result = unlinkat(AT_FDCWD, path, 0);
  return result != 0 && errno == EISDIR ? unlinkat(AT_FDCWD, path, AT_REMOVEDIR) : result;
}

}  // extern "C"
