// Loaded before all else (LD_PRELOAD): the system refuses what a program asks for, at one call that is chosen by
// number.
//
//   HVD_REFUSE="SETS N WHO HOW"
//   SETS  of memory, map, file, lock, thread, process, random, with commas between, or all
//   N     the number of the call, from 1; 0: only counts
//   WHO   0: the process that calls refuse_from_here; k: the k-th that it forks; -1: each of them
//   HOW   once, or always: also all calls after it
//
// Calls are counted from `refuse_from_here` on, in each process by itself; `refuse_report` writes what was counted, a
// line "calls WHO NUMBER FUNCTION" for each process, where FUNCTION is what was refused, or "-".
#undef _FILE_OFFSET_BITS  // or one of two names for the same function would become the other
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void refuse_from_here();
void refuse_report();
}

namespace {

enum set : unsigned { memory = 1, map = 2, file = 4, lock = 8, thread = 16, process = 32, random_bits = 64 };

struct account {
  std::atomic<long> calls;
  std::atomic<const char*> refused;
};
constexpr int most = 16;  // processes

unsigned sets = 0;
long number = 0;
int who = 0;
bool always = false;
bool stops = false;  // HVD_REFUSE_STOP: for a debugger
account* all = nullptr;
account* own = nullptr;
int forked = 0;

bool refused(set kind, const char* function) {
  account* const mine = own;
  if (mine == nullptr || (sets & kind) == 0) return false;
  const long n = mine->calls.fetch_add(1) + 1;
  if (number == 0 || (who >= 0 && who != mine - all) || (always ? n < number : n != number)) return false;
  const char* none = nullptr;
  mine->refused.compare_exchange_strong(none, function);
  if (stops) ::raise(SIGTRAP);
  return true;
}

template <class F>
F* next(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}
// Found before anything is refused, because the search allocates.
decltype(::fork)* const next_fork = next<decltype(::fork)>("fork");
decltype(::pthread_create)* const next_create = next<decltype(::pthread_create)>("pthread_create");
decltype(::posix_fallocate)* const next_fallocate = next<decltype(::posix_fallocate)>("posix_fallocate");
decltype(::fcntl)* const next_fcntl = next<decltype(::fcntl)>("fcntl");

int refuse_with(int why) {
  errno = why;
  return -1;
}
int open_at(int folder, const char* path, int flags, mode_t mode) {
  if (refused(file, "open")) return refuse_with(EMFILE);
  return static_cast<int>(::syscall(SYS_openat, folder, path, flags, mode));
}
mode_t mode_of(int flags, std::va_list list) {
  const bool has = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  return has ? static_cast<mode_t>(va_arg(list, unsigned)) : 0;
}

}  // namespace

extern "C" {

void refuse_from_here() {
  const char* const text = std::getenv("HVD_REFUSE");
  if (text == nullptr) return;
  char names[128] = {}, how[16] = {};
  if (std::sscanf(text, "%127s %ld %d %15s", names, &number, &who, how) != 4) std::abort();
  constexpr struct {
    const char* name;
    unsigned bits;
  } known[] = {{"memory", memory}, {"map", map},         {"file", file},          {"lock", lock},
               {"thread", thread}, {"process", process}, {"random", random_bits}, {"all", ~0U}};
  for (const auto& k : known) sets |= std::strstr(names, k.name) != nullptr ? k.bits : 0;
  always = std::strcmp(how, "always") == 0;
  stops = std::getenv("HVD_REFUSE_STOP") != nullptr;
  void* const shared = reinterpret_cast<void*>(
      ::syscall(SYS_mmap, nullptr, most * sizeof(account), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (shared == MAP_FAILED) std::abort();
  all = static_cast<account*>(shared);
  own = all;
}

void refuse_report() {
  own = nullptr;
  for (int i = 0; all != nullptr && i <= forked && i != most; ++i) {
    const char* const function = all[i].refused.load();
    ::dprintf(1, "calls %d %ld %s\n", i, all[i].calls.load(), function != nullptr ? function : "-");
  }
}

void* malloc(std::size_t bytes) {
  if (!refused(memory, "malloc")) return __libc_malloc(bytes);
  errno = ENOMEM;
  return nullptr;
}
void* calloc(std::size_t count, std::size_t bytes) {
  if (!refused(memory, "calloc")) return __libc_calloc(count, bytes);
  errno = ENOMEM;
  return nullptr;
}
void* realloc(void* p, std::size_t bytes) {
  if (!refused(memory, "realloc")) return __libc_realloc(p, bytes);
  errno = ENOMEM;
  return nullptr;
}
void* memalign(std::size_t alignment, std::size_t bytes) {
  if (!refused(memory, "memalign")) return __libc_memalign(alignment, bytes);
  errno = ENOMEM;
  return nullptr;
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void** p, std::size_t alignment, std::size_t bytes) {
  *p = memalign(alignment, bytes);
  return *p == nullptr ? ENOMEM : 0;
}

void* mmap(void* at, std::size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
  if (!refused(map, "mmap")) {
    return reinterpret_cast<void*>(::syscall(SYS_mmap, at, bytes, protection, flags, fd, offset));
  }
  errno = ENOMEM;
  return MAP_FAILED;
}
void* mmap64(void* at, std::size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
  return mmap(at, bytes, protection, flags, fd, offset);
}

int ftruncate(int fd, off_t bytes) noexcept {
  return refused(file, "ftruncate") ? refuse_with(ENOSPC) : static_cast<int>(::syscall(SYS_ftruncate, fd, bytes));
}
int ftruncate64(int fd, off_t bytes) noexcept { return ftruncate(fd, bytes); }
int fchmod(int fd, mode_t mode) noexcept {
  return refused(file, "fchmod") ? refuse_with(EPERM) : static_cast<int>(::syscall(SYS_fchmod, fd, mode));
}
int posix_fallocate(int fd, off_t offset, off_t bytes) {
  return refused(file, "posix_fallocate") ? ENOSPC : next_fallocate(fd, offset, bytes);
}
int posix_fallocate64(int fd, off_t offset, off_t bytes) { return posix_fallocate(fd, offset, bytes); }
int open(const char* path, int flags, ...) {
  std::va_list list;
  va_start(list, flags);
  const mode_t mode = mode_of(flags, list);
  va_end(list);
  return open_at(AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  std::va_list list;
  va_start(list, flags);
  const mode_t mode = mode_of(flags, list);
  va_end(list);
  return open_at(AT_FDCWD, path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  std::va_list list;
  va_start(list, flags);
  const mode_t mode = mode_of(flags, list);
  va_end(list);
  return open_at(folder, path, flags, mode);
}
int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) noexcept {
  if (refused(file, "linkat")) return refuse_with(ENOSPC);
  return static_cast<int>(::syscall(SYS_linkat, from_folder, from, to_folder, to, flags));
}
int fcntl(int fd, int command, ...) {
  std::va_list list;
  va_start(list, command);
  void* const argument = va_arg(list, void*);
  va_end(list);
  const bool locks = command == F_OFD_SETLK || command == F_OFD_SETLKW;  // to look at one needs nothing
  const bool copies = command == F_DUPFD || command == F_DUPFD_CLOEXEC;
  if (locks && refused(lock, "fcntl, a lock")) return refuse_with(ENOLCK);
  if (copies && refused(file, "fcntl, a copy")) return refuse_with(EMFILE);
  return next_fcntl(fd, command, argument);
}
int fcntl64(int fd, int command, ...) {
  std::va_list list;
  va_start(list, command);
  void* const argument = va_arg(list, void*);
  va_end(list);
  return fcntl(fd, command, argument);
}

int pthread_create(pthread_t* made, const pthread_attr_t* how, void* (*run)(void*), void* with) noexcept {
  return refused(thread, "pthread_create") ? EAGAIN : next_create(made, how, run, with);
}
pid_t fork() noexcept {
  if (refused(process, "fork")) return refuse_with(EAGAIN);
  account* const before = own;
  const bool counted = own == all && all != nullptr && forked + 1 < most;
  const int index = counted ? ++forked : 0;
  own = nullptr;  // what handlers do in the child is the parent's
  const pid_t pid = next_fork();
  own = pid != 0 ? before : counted ? all + index : nullptr;
  return pid;
}
ssize_t getrandom(void* to, std::size_t bytes, unsigned flags) {
  if (refused(random_bits, "getrandom")) return refuse_with(ENOSYS);
  return ::syscall(SYS_getrandom, to, bytes, flags);
}

}  // extern "C"
