// tests/queue/processes.cpp: queues between processes, of which one dies or forks.
#include <hvd/allreduce.hpp>
#include <hvd/queue.hpp>
#include <hvd/transport/self.hpp>
#include <hvd/transport/shm.hpp>

#include <support/front_door.hpp>
#include <support/processes.hpp>

#include <atomic>
#include <chrono>
#include <csignal>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

using namespace hvd::test;
using hvd::any_transport;

TEST_CASE("queue: calls and messages that wait for a killed rank name it") {
  for (const bool message : {false, true}) {
    children ranks(3);
    ranks.start_all([&](int r, report& mine) {
      hvd::queue calls(hvd::ShmTransport("queue-" + std::to_string(::getppid()), r, 3), {.messages = true});
      std::vector<int> values(1000, 1);
      int x = 0;
      calls.call([&](any_transport& comm) { hvd::allreduce(comm, values); });
      mine.progress = 1;
      if (r == 1) ::raise(SIGKILL);
      if (message) return calls.recv(std::span(&x, 1), 1).wait();
      calls.run([&](any_transport& comm) { hvd::allreduce(comm, values); }).wait();
    });
    REQUIRE(ranks.wait(30.0));
    for (const int r : {0, 2}) {
      CAPTURE(ranks[r].text());
      CHECK(ranks[r].is(hvd::error_kind::peer_lost));
      CHECK(ranks[r].culprit == 1);
    }
  }
}

TEST_CASE("queue: a forked child is refused, and may end its copy") {
  hvd::queue calls{hvd::SelfTransport()};
  std::atomic<bool> go{false};
  const hvd::handle slow = calls.run([&](any_transport&) {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  const pid_t child = ::fork();
  if (child == 0) {
    const auto refuses = [](const auto& f) {
      try {
        f();
      } catch (const hvd::error& e) {
        return std::string_view(e.what()).find("was forked from") != std::string_view::npos;
      }
      return false;
    };
    const bool refused = refuses([&] { static_cast<void>(calls.run([](any_transport&) {})); }) &&
                         refuses([&] { calls.call([](any_transport&) {}); }) && refuses([&] { slow.wait(); });
    { const hvd::queue mine = std::move(calls); }
    ::_exit(refused ? 0 : 1);
  }
  go = true;
  slow.wait();
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
}
