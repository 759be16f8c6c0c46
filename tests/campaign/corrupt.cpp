// Ranks whose common memory is overwritten while they work, under AddressSanitizer and UBSan: tests/campaign/corrupt.py
// starts it and judges. Whatever another process writes, a rank gets an hvd::error or a wrong result; it never touches
// memory outside of the mappings, and never waits beyond its deadlines.
//
// A line of standard input, SEED FOLDER, is a job; a line of standard output is what became of it, with tabs between:
// WORDS (overwritten) ERRORS WRONG (sums) TEXT (what nobody should have done, or nothing). All that is random follows
// from the seed. One rank of the job has a thread that writes: into the mappings of its own process, which are those of
// all ranks. Pages around each mapping cannot be touched, because a sanitizer does not know where mappings end.
#include <hvd/hvd.hpp>

#include <support/any_operation.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" const char* __asan_default_options() {
  return "detect_leaks=0:exitcode=99:handle_abort=1:alloc_dealloc_mismatch=0:allocator_may_return_null=1";
}
extern "C" const char* __ubsan_default_options() { return "print_stacktrace=1"; }

namespace {

using hvd::test::now;
using hvd::test::pause_for;

// ---- memory that ranks share, between pages that nobody may touch ---------------------------------------------------

constexpr std::size_t guard = std::size_t{1} << 30;

struct mapping {
  std::byte* data;
  std::size_t bytes;
};
/// Of this process. Whoever writes into a mapping holds the lock, so that it stays mapped.
struct mappings {
  std::mutex lock;
  std::vector<mapping> all;
  static mappings& instance() {
    static mappings& m = *new mappings;
    return m;
  }
};

void* system_map(void* at, std::size_t bytes, int protection, int flags, int fd, off_t offset) {
  return reinterpret_cast<void*>(::syscall(SYS_mmap, at, bytes, protection, flags, fd, offset));
}

}  // namespace

// What the library maps comes here: files that processes share, and memory that threads share.
extern "C" void* mmap(void* at, std::size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
  const bool of_processes = (flags & MAP_SHARED) != 0 && fd >= 0 && (protection & PROT_WRITE) != 0;
  const bool of_threads = flags == (MAP_PRIVATE | MAP_ANONYMOUS) && protection == (PROT_READ | PROT_WRITE);
  if (at != nullptr || !(of_processes || of_threads)) return system_map(at, bytes, protection, flags, fd, offset);
  const std::size_t whole = (bytes + 4095) / 4096 * 4096 + 2 * guard;
  void* const room = system_map(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return room;
  std::byte* const data = static_cast<std::byte*>(room) + guard;
  if (system_map(data, bytes, protection, flags | MAP_FIXED, fd, offset) == MAP_FAILED) {
    const int why = errno;
    ::syscall(SYS_munmap, room, whole);
    errno = why;
    return MAP_FAILED;
  }
  auto& m = mappings::instance();
  const std::lock_guard lock(m.lock);
  m.all.push_back({data, bytes});
  return data;
}

extern "C" int munmap(void* at, std::size_t bytes) noexcept {
  auto& m = mappings::instance();
  const std::lock_guard lock(m.lock);
  const auto found = std::find_if(m.all.begin(), m.all.end(), [&](const mapping& one) { return one.data == at; });
  if (found == m.all.end()) return static_cast<int>(::syscall(SYS_munmap, at, bytes));
  const std::size_t whole = (found->bytes + 4095) / 4096 * 4096 + 2 * guard;
  m.all.erase(found);
  return static_cast<int>(::syscall(SYS_munmap, static_cast<std::byte*>(at) - guard, whole));
}

// The sanitizer ends a program that wants far too much memory; this is what the system does.
void* operator new(std::size_t bytes) {
  void* const p = bytes > std::size_t{1} << 32 ? nullptr : std::malloc(bytes);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
void* operator new[](std::size_t bytes) { return ::operator new(bytes); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }

namespace {

/// What ranks tell the process that started them.
struct tally {
  std::atomic<unsigned> words{0}, errors{0}, wrong{0};
  char doing[8][64] = {};
};
tally* told = nullptr;
int own_rank = 0;  // in a process of one

void doing(int rank, const char* what, unsigned step) {
  std::snprintf(told->doing[rank], sizeof told->doing[rank], "%s, step %u", what, step);
}

struct job {
  explicit job(unsigned seed) {
    std::mt19937 dice(seed);
    size = 2 + static_cast<int>(dice() % 3);
    threads = dice() % 4 == 0;
    engine = dice() % 2 == 0;
    check = dice() % 3 == 0;
    staging = std::size_t{1} << (16 + 2 * (dice() % 3));
    writer = static_cast<int>(dice() % static_cast<unsigned>(size));
    const unsigned counts[] = {1, 3, 20, 300, 5000};
    words = counts[dice() % std::size(counts)];
    begin = dice() % 3 == 0 ? 0.0 : static_cast<double>(dice() % 1000) * (engine ? 60e-6 : 30e-6);
    pause_us = dice() % 2 == 0 ? 0 : 1 + static_cast<unsigned>(dice() % 200);
    favourite = static_cast<unsigned>(dice() % 6);
    value = static_cast<unsigned>(dice() % 8);
  }
  int size, writer;
  bool threads, engine, check;
  std::size_t staging;
  unsigned words, pause_us, favourite, value;
  double begin;

  [[nodiscard]] hvd::sharing_options options(const std::string& folder) const {
    hvd::sharing_options o;
    o.memory.directory = folder;
    o.memory.staging_bytes = staging;
    o.failure.timeout = hvd::failure_policy::seconds(0.5);
    o.failure.start_timeout = hvd::failure_policy::seconds(1.0);
    o.failure.check = check;
    return o;
  }
};

// ---- who writes -----------------------------------------------------------------------------------------------------

class wild_writer {
 public:
  wild_writer(const job& j, unsigned seed) : job_(j), dice_(seed * 7919 + 1), thread_([this] { run(); }) {}
  wild_writer(const wild_writer&) = delete;
  wild_writer& operator=(const wild_writer&) = delete;
  ~wild_writer() {
    ended_ = true;
    thread_.join();
  }

 private:
  void run() {
    for (const double until = now() + job_.begin; now() < until && !ended_;) pause_for(20e-6);
    for (unsigned i = 0; i != job_.words && !ended_;) {
      if (write()) {
        ++i;
        ++told->words;
      } else {
        pause_for(20e-6);
      }
      if (job_.pause_us != 0) pause_for(1e-6 * static_cast<double>(dice_() % job_.pause_us));
    }
  }

  [[nodiscard]] std::size_t below(std::size_t n) { return n == 0 ? 0 : dice_() % n; }

  /// Where in a mapping: rather where words of a protocol lie than among data.
  [[nodiscard]] std::size_t place(const mapping& m) {
    using namespace hvd::detail;
    for (int size = 1; size <= job_.size; ++size) {
      const geometry g = make_geometry(size, job_.staging);
      if (m.bytes != group_bytes(size, g)) continue;
      const std::size_t window = sizeof(group_header) + below(static_cast<std::size_t>(size)) * g.window_bytes;
      const std::size_t what = below(2) == 0 ? job_.favourite : below(6);
      if (what == 0) {
        const std::size_t places[] = {offsetof(group_header, abort),   offsetof(group_header, ready),
                                      offsetof(group_header, entered), offsetof(group_header, nonce),
                                      offsetof(group_header, size),    below(sizeof(group_header))};
        return places[below(std::size(places))];
      }
      if (what == 1) return window + below(sizeof(control));
      if (what == 2) return window + g.mailboxes_at + below(2 * sizeof(mailbox));
      if (what == 3) return window + g.ring_at + below(g.ring_bytes);
      const std::size_t channel = slots_per_channel * (sizeof(slot) + g.slot_bytes) + apart;
      const std::size_t at = window + g.channels_at + below(static_cast<std::size_t>(size)) * channel;
      if (what == 4)
        return at + (below(2) == 0 ? below(16) : apart + below(3) * (sizeof(slot) + g.slot_bytes) + below(128));
      return window + below(g.window_bytes);
    }
    return below(2) == 0 ? below(std::min<std::size_t>(m.bytes, 256)) : below(m.bytes);
  }

  [[nodiscard]] std::uint64_t value(std::uint64_t old) {
    switch (below(2) == 0 ? job_.value : below(8)) {
      case 0: return (static_cast<std::uint64_t>(dice_()) << 32) | dice_();
      case 1: return below(10);
      case 2: return old + 1 - 2 * below(2);
      case 3: return old ^ std::uint64_t{1} << below(64);
      case 4: return ~std::uint64_t{0};
      case 5: return 0;
      case 6: return old + (std::uint64_t{1} << 16) * (1 + below(3));  // the stamp of another exchange
      default: return (below(1 << 20) << 32) | below(1 << 20);         // two offsets or counts
    }
  }

  bool write() {
    auto& m = mappings::instance();
    const std::lock_guard lock(m.lock);
    if (m.all.empty()) return false;
    // The latest is often a group's or a block's that lives for a moment only.
    const mapping& one = below(3) == 0 ? m.all.back() : m.all[below(m.all.size())];
    const std::size_t at = std::min(place(one), one.bytes - 8) / 8 * 8;
    auto* const word = reinterpret_cast<std::uint64_t*>(one.data + at);
    // A page without memory is nobody's yet; to touch it would be this thread's fault.
    const std::uint64_t old = __atomic_load_n(word, __ATOMIC_RELAXED);
    if (below(4) != 0) {
      __atomic_store_n(word, value(old), __ATOMIC_RELAXED);
    } else {
      auto* const half = reinterpret_cast<std::uint32_t*>(word) + below(2);
      __atomic_store_n(half, static_cast<std::uint32_t>(value(*half)), __ATOMIC_RELAXED);
    }
    return true;
  }

  const job& job_;
  std::mt19937 dice_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

// ---- what ranks do --------------------------------------------------------------------------------------------------

void check(bool right) {
  if (!right) ++told->wrong;
}

template <class T>
void sums(T& comm, std::size_t n) {
  std::vector<float> data(n, 1.0F);
  hvd::allreduce(comm, data);
  const auto wanted = static_cast<float>(comm.size());
  check(std::all_of(data.begin(), data.end(), [&](float x) { return x == wanted; }));
}

/// Collectives on memory that all ranks map.
template <class T>
void mapped(T& comm, hvd::shared_array<float>& in, hvd::shared_array<float>& out, std::mt19937& dice) {
  const std::size_t p = static_cast<std::size_t>(comm.size()), n = in.size() / p;
  const std::span<float> a(in.data(), n), b(out.data(), n), all_in(in.data(), n * p), all_out(out.data(), n * p);
  const int root = static_cast<int>(dice() % p);
  switch (dice() % 8) {
    case 0: return hvd::allreduce(comm, all_in);
    case 1: return hvd::allreduce(comm, all_in, all_out);
    case 2: return hvd::reduce_scatter(comm, all_in, b);
    case 3: return hvd::allgather(comm, a, all_out);
    case 4: return hvd::alltoall(comm, all_in, all_out);
    case 5: return hvd::broadcast(comm, all_in, root);
    case 6: return hvd::gather(comm, a, all_out, root);
    default: return hvd::scatter(comm, all_in, b, root);
  }
}

template <class T>
void blocks(T& comm, std::mt19937& dice) {
  const std::size_t p = static_cast<std::size_t>(comm.size()), r = static_cast<std::size_t>(comm.rank());
  const std::size_t unit = dice() % 2 == 0 ? 3 : 3000;
  std::vector<std::size_t> counts(p), to(p), from(p);
  for (std::size_t q = 0; q != p; ++q) {
    counts[q] = unit * q + 1;
    to[q] = unit * ((r + 2 * q) % 3);
    from[q] = unit * ((q + 2 * r) % 3);
  }
  const auto sum = [](const std::vector<std::size_t>& c) {
    return std::accumulate(c.begin(), c.end(), std::size_t{0});
  };
  std::vector<double> own(counts[r], 1.0), all(sum(counts), 1.0), sent(sum(to), 1.0), got(sum(from));
  switch (dice() % 5) {
    case 0: return hvd::allgather_v(comm, own, all, counts);
    case 1: return hvd::reduce_scatter_v(comm, all, own, counts);
    case 2: return hvd::gather_v(comm, own, all, counts, 0);
    case 3: return hvd::scatter_v(comm, all, own, counts, 0);
    default: return hvd::alltoall_v(comm, sent, got, to, from);
  }
}

template <class T>
void fused(T& comm, std::mt19937& dice) {
  hvd::FusionBuffer<T> buffer(comm, 1 << 16);
  std::vector<std::vector<float>> tensors(2 + dice() % 4);
  std::vector<hvd::fused> batch;
  for (auto& t : tensors) {
    t.assign(1 + dice() % 9000, 1.0F);
    auto* const bytes = reinterpret_cast<std::byte*>(t.data());
    batch.push_back(
        {bytes, bytes, t.size(), hvd::dtype::float32, dice() % 3 == 0 ? hvd::dtype::float16 : hvd::dtype::float32});
  }
  switch (dice() % 3) {
    case 0: return buffer.adasum(batch);
    case 1:
      for (auto& t : batch) t.wire = t.type;
      return buffer.broadcast(batch, 0);
    default: return buffer.allreduce(batch);
  }
}

template <class T>
void work(T& comm, unsigned seed) {
  std::mt19937 dice(seed);
  const int rank = own_rank;
  auto in = comm.template alloc_shared<float>(6000), out = comm.template alloc_shared<float>(6000);
  for (unsigned step = 0; step != 40; ++step) {
    switch (dice() % 8) {
      case 0: doing(rank, "mapped", step), mapped(comm, in, out, dice); break;
      case 1: doing(rank, "blocks", step), blocks(comm, dice); break;
      case 2: doing(rank, "fused", step), fused(comm, dice); break;
      case 3: {
        doing(rank, "split", step);
        auto part = comm.split(comm.rank() % 2, -comm.rank());
        doing(rank, "in a part", step);
        for (int i = 0; i != 3; ++i) hvd::test::any_operation(part, dice);
        dice.seed(seed + step);
        break;
      }
      case 4:
      case 5: {
        const std::size_t sizes[] = {1, 14, 300, 5000, 70000};
        doing(rank, "sums", step), sums(comm, sizes[dice() % std::size(sizes)]);
        break;
      }
      default: doing(rank, "any operation", step), hvd::test::any_operation(comm, dice);
    }
  }
}

struct named {
  unsigned kind;
  std::vector<float> data;
};

template <class T>
void work_with_engine(T& comm, unsigned seed) {
  std::mt19937 dice(seed), own(seed + 1000U * static_cast<unsigned>(comm.rank()));
  hvd::engine_options options;
  options.report = [](const std::string&) {};
  options.stall_warning = options.stall_shutdown = hvd::engine_options::seconds(1.0);
  options.cache_capacity = dice() % 2 == 0 ? 8 : 1024;
  const int rank = own_rank, size = comm.size();
  const std::size_t p = static_cast<std::size_t>(size);
  std::vector<named> tensors;  // outlive the engine
  doing(rank, "make an engine", 0);
  hvd::Engine<T> engine(comm, options);
  for (unsigned step = 0; step != 12; ++step) {
    std::vector<hvd::handle> handles;
    int set = 0;
    if (dice() % 6 == 0) {
      doing(rank, "add a process set", step);
      set = engine.add_process_set({0, size - 1});
      const std::size_t n = 1 + dice() % 500;
      if (engine.rank() == 0 || engine.rank() == size - 1) {
        tensors.push_back({0, std::vector<float>(n, 1.0F)});
        handles.push_back(engine.allreduce("in a set", tensors.back().data, hvd::sum, {.process_set = set}));
      }
    }
    std::vector<unsigned> names(1 + dice() % 6);
    for (unsigned& name : names) name = static_cast<unsigned>(dice()) % 10000;
    std::vector<std::size_t> order(names.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), own);
    tensors.reserve(tensors.size() + names.size());
    for (const std::size_t i : order) {
      const unsigned kind = names[i] % 8;
      const std::size_t n = names[i] % 3 == 0 ? 40'000 : names[i] % 300 + 1;
      const std::string name = hvd::detail::joined({kind, " ", names[i] % 40, " ", i, " ", n});
      tensors.push_back({kind, std::vector<float>(kind == 2 ? n + engine.rank() * 10U : kind == 3 ? n * p : n, 1.0F)});
      auto& data = tensors.back().data;
      switch (kind) {
        case 0: handles.push_back(engine.broadcast(name, data, size - 1)); break;
        case 1: handles.push_back(engine.reduce_scatter(name, data)); break;
        case 2: handles.push_back(engine.allgather(name, data)); break;
        case 3: {
          std::vector<std::size_t> splits(p, n - n / 2);
          splits.front() += n / 2 * (p - 1);
          splits.back() += n / 2;
          handles.push_back(engine.alltoall(name, data, splits));
          break;
        }
        case 4: handles.push_back(engine.barrier(name)); break;
        default: handles.push_back(engine.allreduce(name, data));
      }
    }
    doing(rank, "wait", step);
    for (auto& h : handles) h.wait();
    for (const auto& t : tensors) {
      check(t.kind < 5 ||
            std::all_of(t.data.begin(), t.data.end(), [&](float x) { return x == static_cast<float>(size); }));
    }
    tensors.clear();
    if (set != 0) {
      doing(rank, "remove a process set", step);
      engine.remove_process_set(set);
    }
    if (dice() % 8 == 0) {
      doing(rank, "join", step);
      engine.join().wait();
    }
  }
  doing(rank, "shut down", 0);
}

/// One rank's life in the group that `make` joins. False if it ends with what is no error of hvd.
template <class Make>
bool live(const job& j, unsigned seed, const Make& make) {
  try {
    auto comm = make();
    if (j.engine) {
      work_with_engine(comm, seed);
    } else {
      work(comm, seed);
    }
    doing(own_rank, "leave", 0);
  } catch (const hvd::error& e) {
    ++told->errors;
    if (std::string_view(e.what()).size() > 5000) return false;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s, which is no hvd::error, in %s\n", e.what(), told->doing[own_rank]);
    return false;
  }
  return true;
}

int rank_of_processes(const job& j, unsigned seed, const std::string& name, const std::string& folder, int rank) {
  own_rank = rank;
  std::unique_ptr<wild_writer> writer;
  if (rank == j.writer) writer = std::make_unique<wild_writer>(j, seed);
  return live(j, seed, [&] { return hvd::ShmTransport(name, rank, j.size, j.options(folder)); }) ? 0 : 4;
}

int ranks_of_threads(const job& j, unsigned seed, const std::string& folder) {
  std::atomic<bool> well{true};
  {
    const wild_writer writer(j, seed);
    const auto group = std::make_shared<hvd::ThreadTransport::group>(j.size, j.options(folder));
    std::vector<std::thread> threads;
    for (int r = 0; r != j.size; ++r) {
      threads.emplace_back([&, r] {
        if (!live(j, seed, [&] { return hvd::ThreadTransport(group, r); })) well = false;
      });
    }
    for (std::thread& t : threads) t.join();
  }
  return well ? 0 : 4;
}

// ---- jobs -----------------------------------------------------------------------------------------------------------

void run(unsigned seed, const std::string& folder) {
  static int number = 0;
  const job j(seed);
  const std::string name = "corrupt-" + std::to_string(::getpid()) + "-" + std::to_string(++number);
  new (told) tally;
  const int said = ::memfd_create("said", MFD_CLOEXEC);
  std::vector<pid_t> pids;
  for (int r = 0; r != (j.threads ? 1 : j.size); ++r) {
    pids.push_back(::fork());
    if (pids.back() != 0) continue;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(said, 2);
    ::_exit(j.threads ? ranks_of_threads(j, seed, folder) : rank_of_processes(j, seed, name, folder, r));
  }
  std::ostringstream wrong;
  const double end = now() + 40;  // many times all deadlines together
  for (std::size_t r = 0; r != pids.size(); ++r) {
    int status = 0;
    pid_t over = 0;
    while ((over = ::waitpid(pids[r], &status, WNOHANG)) == 0 && now() < end) pause_for(0.0005);
    if (over == 0) {
      wrong << "rank " << r << " hangs in '" << told->doing[r] << "'; ";
      if (std::getenv("HVD_CORRUPT_STAY") != nullptr) {  // for whoever wants to look
        std::fprintf(stderr, "process %d hangs\n", pids[r]);
        ::pause();
      }
      ::kill(pids[r], SIGKILL);
      ::waitpid(pids[r], &status, 0);
    } else if (WIFSIGNALED(status)) {
      wrong << "rank " << r << " was ended by signal " << WTERMSIG(status) << " in '" << told->doing[r] << "'; ";
    } else if (WEXITSTATUS(status) != 0) {
      wrong << "rank " << r << " ended with " << WEXITSTATUS(status) << " in '" << told->doing[r] << "'; ";
    }
  }
  std::string text(20'000, '\0');
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, ::pread(said, text.data(), text.size(), 0))));
  ::close(said);
  text = wrong.str().empty() ? "" : wrong.str() + text;
  for (char& c : text) c = c == '\n' ? '|' : c == '\t' ? ' ' : c;
  std::printf("%u\t%u\t%u\t%s\n", told->words.load(), told->errors.load(), told->wrong.load(), text.c_str());
  std::fflush(stdout);
}

}  // namespace

int main() {
  void* const memory = ::mmap(nullptr, sizeof(tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  told = static_cast<tally*>(memory);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  unsigned seed = 0;
  for (std::string folder; std::cin >> seed >> folder;) run(seed, folder);
}
