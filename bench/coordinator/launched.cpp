// bench/coordinator/launched.cpp: ranks of one launcher find each other by their common parent.
#include <bench/coordinator/launched.hpp>

#include <bench/backends/hvd.hpp>
#include <bench/coordinator/signals.hpp>
#include <bench/rank/place.hpp>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <thread>

#include <fcntl.h>
#include <unistd.h>

namespace hvd::bench {
namespace {

int number_of(const char* variable) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? 0 : std::atoi(text);
}

/// The kernel's start time of a process, which with its number names it for good.
std::string start_time(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::istringstream words(text.substr(text.rfind(')') + 1));  // the name before may hold anything
  std::string word;
  for (int field = 3; field <= 22; ++field) words >> word;
  return word;
}

/// The file from which ranks of a launcher learn the place of the stage.
std::string notice_of(const std::string& key) { return "/dev/shm/" + key; }

volatile std::sig_atomic_t received = 0;

/// Launchers pass a signal on to all ranks, and kill all others when one is ended by it; but rank 0 has results to
/// write and ends this rank when that is done. If rank 0 does not, this rank ends by itself.
void leave_signals_to_rank_0() {
  constexpr unsigned patience_s = 5;
  struct sigaction action {};
  ::sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  action.sa_handler = [](int) { ::_exit(128 + received); };
  ::sigaction(SIGALRM, &action, nullptr);
  action.sa_handler = [](int signal) {
    received = signal;
    ::alarm(patience_s);
  };
  for (const int s : ending_signals) {
    struct sigaction before {};
    ::sigaction(s, nullptr, &before);
    if (before.sa_handler != SIG_IGN) ::sigaction(s, &action, nullptr);  // as under nohup
  }
}

}  // namespace

std::optional<launched> find_launcher() {
  const bool found = std::getenv("PMI_RANK") != nullptr || std::getenv("OMPI_COMM_WORLD_RANK") != nullptr ||
                     std::getenv("PMIX_RANK") != nullptr;
  if (!found || std::getenv(rank_variable) != nullptr) return std::nullopt;
  const place at = find_place();
  launched l;
  l.rank = at.rank;
  l.size = at.size;
  l.local_size = number_of("OMPI_COMM_WORLD_LOCAL_SIZE");
  if (l.local_size == 0) l.local_size = number_of("MPI_LOCALNRANKS");
  const pid_t parent = ::getppid();
  l.key = "hvd-bench@" + std::to_string(::getuid()) + "-" + std::to_string(parent) + "-" + start_time(parent);
  return l;
}

void check_launched(const launched& inside, const options& o) {
  if (inside.local_size != 0 && inside.local_size < inside.size) {
    throw usage_error("the launcher has started " + std::to_string(inside.size) + " ranks, " +
                      std::to_string(inside.local_size) +
                      " of them on this host; hvd-bench measures ranks of one host only");
  }
  if (!o.peers.empty()) {
    throw usage_error("--peer works only where hvd-bench starts the ranks itself; run it without mpiexec");
  }
  if (o.steady) throw usage_error("--steady pins ranks of its own; run it without mpiexec");
  if (in_one_process(o.transport) && inside.size > 1) {
    throw usage_error("--transport " + o.transport + " has all ranks in one process; run it without mpiexec");
  }
}

StageNotice::StageNotice(const std::string& key, const std::string& stage) {
  if (key.empty()) return;
  path_ = notice_of(key);
  ::unlink(path_.c_str());
  const std::string draft = path_ + "-draft";
  const int fd = ::open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  const bool written = fd >= 0 && ::write(fd, stage.data(), stage.size()) == static_cast<ssize_t>(stage.size());
  if (fd >= 0) ::close(fd);
  if (!written || ::rename(draft.c_str(), path_.c_str()) != 0) {
    throw std::runtime_error("cannot write " + path_ + ": " + std::strerror(errno));
  }
}

StageNotice::~StageNotice() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

int serve_launched(const launched& inside, const hvd_settings& settings, const std::string& cpu_list) {
  using clock = std::chrono::steady_clock;
  leave_signals_to_rank_0();
  const std::string notice = notice_of(inside.key);
  std::string path;
  for (const auto start = clock::now(); path.empty();) {
    std::ifstream file(notice);
    std::getline(file, path);
    if (!path.empty()) break;
    if (clock::now() - start > std::chrono::seconds(30)) {
      throw std::runtime_error("rank " + std::to_string(inside.rank) + " found no rank 0 on this host within 30 s");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  const Stage stage = Stage::open(path);
  ::setenv(cpus_variable, cpu_list.c_str(), 1);
  // Only rank 0 reports errors: a launcher prints a lot about ranks that end with another code.
  const int code = hvd_process(stage, settings, inside.rank);
  return received != 0 ? 128 + received : code == 1 ? 1 : 0;
}

}  // namespace hvd::bench
