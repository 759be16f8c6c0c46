// bench/coordinator/signals.cpp: a handler that only notes the signal.
#include <bench/coordinator/signals.hpp>

#include <cstring>

namespace hvd::bench {
namespace {

volatile std::sig_atomic_t received = 0;

}  // namespace

std::string signal_name(int signal) {
  const char* const name = ::sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

void catch_signals() {
  struct sigaction action {};
  action.sa_handler = [](int signal) { received = signal; };
  ::sigemptyset(&action.sa_mask);
  for (const int s : ending_signals) {
    struct sigaction before {};
    ::sigaction(s, nullptr, &before);
    if (before.sa_handler != SIG_IGN) ::sigaction(s, &action, nullptr);
  }
  ::signal(SIGCHLD, SIG_DFL);
}

int received_signal() noexcept { return received; }

}  // namespace hvd::bench
