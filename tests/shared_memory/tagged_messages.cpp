#include <hvd/shared_memory/tagged_messages.hpp>

#include <hvd/launch.hpp>

#include "support/require.hpp"

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using hvd::error_kind;
using hvd::ThreadTransport;
using hvd::detail::tagged_message;
using hvd::detail::tagged_messages;
using hvd::test::require;

hvd::sharing_options mail_options() {
  hvd::sharing_options o;
  o.memory.staging_bytes = 128 << 10;
  o.failure.timeout = std::chrono::duration<double>(30.0);
  o.failure.check = false;
  return o;
}

/// A message with memory of its own.
struct letter {
  std::vector<std::byte> data;
  std::shared_ptr<tagged_message> what;
};

std::vector<std::byte> content(std::size_t n, int from, int tag) {
  std::vector<std::byte> m(n);
  for (std::size_t i = 0; i != n; ++i) m[i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(from * 31 + tag));
  return m;
}

class mail {
 public:
  explicit mail(ThreadTransport& comm) : comm_(comm), messages_(comm.peers()) {}

  letter send(std::size_t n, int to, int tag) { return post({content(n, comm_.rank(), tag), make(true, to, tag)}); }
  letter recv(std::size_t n, int from, int tag, double seconds = 30.0) {
    auto what = make(false, from, tag);
    what->deadline = tagged_message::clock::now() + std::chrono::milliseconds(static_cast<int>(seconds * 1000));
    return post({std::vector<std::byte>(n), std::move(what)});
  }
  void finish() {
    while (!messages_.idle()) {
      if (!messages_.progress()) messages_.wait([] { return false; });
    }
  }
  void finish(const letter& one) {
    while (!one.what->done) {
      if (!messages_.progress()) messages_.wait([] { return false; });
    }
  }

 private:
  static std::shared_ptr<tagged_message> make(bool sends, int peer, int tag) {
    auto m = std::make_shared<tagged_message>();
    m->sends = sends;
    m->peer = peer;
    m->tag = tag;
    return m;
  }
  letter post(letter l) {
    l.what->data = l.data.data();
    l.what->bytes = l.data.size();
    messages_.post(l.what);
    return l;
  }

  ThreadTransport& comm_;
  tagged_messages messages_;
};

TEST_CASE("messages are matched by tag, whatever their order, and in their order for one tag") {
  hvd::thread_run(
      2,
      [](ThreadTransport& comm) {
        mail m(comm);
        const int peer = 1 - comm.rank();
        for (const std::size_t n : {std::size_t{0}, std::size_t{5}, std::size_t{100'000}}) {
          const letter a = m.send(n, peer, 1), b = m.send(n + 1, peer, 2), c = m.send(n + 2, peer, 1);
          const letter of_2 = m.recv(n + 1, peer, 2), first = m.recv(n, peer, 1), second = m.recv(n + 2, peer, 1);
          m.finish();
          for (const letter* l : {&a, &b, &c, &of_2, &first, &second})
            require(l->what->done && !l->what->problem, "all are done");
          require(of_2.data == content(n + 1, peer, 2), "another message with tag 2");
          require(first.data == content(n, peer, 1) && second.data == content(n + 2, peer, 1),
                  "another one with tag 1");
          comm.barrier();
        }
      },
      mail_options());
}

TEST_CASE("messages that are larger than their channels cross each other") {
  hvd::thread_run(
      3,
      [](ThreadTransport& comm) {
        mail m(comm);
        std::vector<letter> in, out;
        for (int q = 0; q != comm.size(); ++q) {
          if (q == comm.rank()) continue;
          out.push_back(m.send(1'000'000, q, 3));
          in.push_back(m.recv(1'000'000, q, 3));
        }
        m.finish();
        for (const letter& l : in) require(l.data == content(1'000'000, l.what->source, 3), "another message");
      },
      mail_options());
}

TEST_CASE("a message from any rank is the first that comes with its tag, and tells from whom") {
  hvd::thread_run(
      4,
      [](ThreadTransport& comm) {
        mail m(comm);
        if (comm.rank() != 0) {
          const letter out = m.send(10, 0, 7);
          m.finish();
        } else {
          std::array<bool, 4> seen{true, false, false, false};
          for (int i = 0; i != 3; ++i) {
            const letter l = m.recv(10, tagged_message::any_rank, 7);
            m.finish();
            const auto from = static_cast<std::size_t>(l.what->source);
            require(from < 4 && !seen[from], "one message from each rank");
            seen[from] = true;
            require(l.data == content(10, l.what->source, 7), "another message");
          }
        }
        comm.barrier();
      },
      mail_options());
}

TEST_CASE("a message of another length is a mismatch for its receiver, and the next one arrives") {
  hvd::thread_run(
      2,
      [](ThreadTransport& comm) {
        mail m(comm);
        if (comm.rank() == 0) {
          const letter first = m.send(20'000, 1, 1), second = m.send(100, 1, 1);
          m.finish();
        } else {
          const letter wrong = m.recv(10, 0, 1), right = m.recv(100, 0, 1);
          m.finish();
          require(wrong.what->problem && wrong.what->problem->kind() == error_kind::mismatch, "a mismatch");
          const std::string text = wrong.what->problem->what();
          require(text.find("expected 10 bytes from rank 0 but it sent 20000") != std::string::npos, text);
          require(!right.what->problem && right.data == content(100, 0, 1), "the next one");
        }
        comm.barrier();
      },
      mail_options());
}

TEST_CASE("a message that does not come ends at its deadline, and others with it do not") {
  hvd::thread_run(
      2,
      [](ThreadTransport& comm) {
        mail m(comm);
        if (comm.rank() == 1) {
          const letter never = m.recv(10, 0, 5, 0.02);
          m.finish();
          require(never.what->problem && never.what->problem->kind() == error_kind::timeout, "a timeout");
          require(never.what->problem->rank() == 0, "rank 0 is silent");
          const std::string text = never.what->problem->what();
          require(text.find("Timed out waiting for a message from rank 0 with tag 5") != std::string::npos, text);
        }
        comm.barrier();
        const letter out = m.send(10, 1 - comm.rank(), 6), in = m.recv(10, 1 - comm.rank(), 6);
        m.finish();
        require(!in.what->problem && in.data == content(10, 1 - comm.rank(), 6), "the group is usable");
        comm.barrier();
      },
      mail_options());
}

TEST_CASE("a rank that leaves ends waits for it, and not those for a message from any rank that is still to come") {
  hvd::thread_run(
      3,
      [](ThreadTransport& comm) {
        auto own = std::make_unique<ThreadTransport>(comm.split(0, comm.rank()));
        mail m(*own);
        if (comm.rank() == 2) {
          own.reset();  // leaves
          comm.barrier();
          comm.barrier();
          return;
        }
        comm.barrier();
        if (comm.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          const letter out = m.send(10, 0, 1);
          m.finish();
          comm.barrier();
          return;
        }
        const letter from_any = m.recv(10, tagged_message::any_rank, 1);
        m.finish(from_any);
        require(!from_any.what->problem && from_any.what->source == 1, "rank 1 has sent it");
        const letter lost = m.recv(10, 2, 1);
        try {
          m.finish(lost);
          require(false, "rank 2 has left");
        } catch (const hvd::error& e) {
          require(e.kind() == error_kind::peer_lost && e.rank() == 2, e.what());
        }
        comm.barrier();
      },
      mail_options());
}

TEST_CASE("an interruption ends a wait, and the group for all ranks") {
  hvd::thread_run(
      2,
      [](ThreadTransport& comm) {
        ThreadTransport own = comm.split(0, comm.rank());
        if (comm.rank() == 0) own.set_interruption({[](void*) { return true; }, nullptr});
        try {
          if (comm.rank() == 0) {
            own.barrier();  // the other rank is not there
            require(false, "interrupted");
          }
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          for (int i = 0; i != 1000; ++i) own.barrier();
          require(false, "the group has ended");
        } catch (const hvd::error& e) {
          require(e.kind() == error_kind::aborted && e.rank() == 0, e.what());
        }
        comm.barrier();
      },
      mail_options());
}

TEST_CASE("another thread ends a group, and a changed time limit holds from the next wait on") {
  hvd::thread_run(
      2,
      [](ThreadTransport& comm) {
        ThreadTransport first = comm.split(0, comm.rank()), second = comm.split(0, comm.rank());
        if (comm.rank() == 0) {
          std::thread other([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            first.abort();
          });
          try {
            first.barrier();
            require(false, "aborted");
          } catch (const hvd::error& e) {
            require(e.kind() == error_kind::aborted, e.what());
          }
          other.join();
          second.set_timeout(std::chrono::duration<double>(0.02));
          try {
            second.barrier();
            require(false, "a timeout");
          } catch (const hvd::error& e) {
            require(e.kind() == error_kind::timeout && e.rank() == 1, e.what());
          }
        }
        comm.barrier();
      },
      mail_options());
}

}  // namespace
