#include "group.hpp"

#include "group_timeline.hpp"

#include <hvd/detail/random_word.hpp>
#include <hvd/engine/clock.hpp>
#include <hvd/transport/self.hpp>
#include <hvd/transport/shm.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace hvd_python {
namespace {

constexpr std::size_t quick_bytes = 64 << 10;  // up to this size, a collective takes no longer than a wake-up

std::shared_ptr<std::byte> hold(hvd::shared_array<std::byte> made) {
  if (made.empty()) return nullptr;
  const auto kept = std::make_shared<hvd::shared_array<std::byte>>(std::move(made));
  return {kept, kept->data()};
}

}  // namespace

void group::perform(hvd::any_transport& comm, pending& p) {
  collective& c = p.what;
  timeline_entry shown(c, transport_, size(), set_.load());
  if (c.may_share) {
    p.shared = hold(comm.map_shared<std::byte>(c.file, c.count * hvd::size_of(c.type)));
    if (p.shared) c.in = c.out = p.shared.get();
  }
  comm.set_timeout(p.timeout);
  run_on(comm, c);
  shown.succeeded();
}

void group::run(pending& p) {
  const auto since = std::chrono::steady_clock::now();
  calls_.call([&](hvd::any_transport& comm) { perform(comm, p); });
  timeline_entry::waited(p.what, set_.load(), since);
}

void group::submit(const std::shared_ptr<pending>& p, std::shared_ptr<void> keep) {
  const bool quick = p->what.count * hvd::size_of(p->what.type) <= quick_bytes && !p->what.may_share;
  p->end = calls_.run(
      [this, p = p.get()](hvd::any_transport& comm) { perform(comm, *p); },
      {quick, std::make_shared<std::pair<std::shared_ptr<pending>, std::shared_ptr<void>>>(p, std::move(keep))});
}

void group::post(pending& p, hvd::detail::tagged_message message, bool waits, std::shared_ptr<void> keep) {
  p.what.kind = message.sends ? hvd::operation::send : hvd::operation::recv;
  p.end = calls_.post(message, waits, std::move(keep));
  p.end.then([kind = p.what.kind, bytes = message.bytes](const hvd::handle& h) {
    timeline_entry::counters().ended(kind, bytes, h.failed());
  });
}

bool group::wait(const pending& p, std::optional<seconds> limit) {
  const bool exposed = !p.end.poll();
  const auto since = std::chrono::steady_clock::now();
  const auto count = [&] {
    if (!exposed) return;
    if (p.what.kind == hvd::operation::send || p.what.kind == hvd::operation::recv) {
      timeline_entry::counters().waited(p.what.kind, std::chrono::steady_clock::now() - since, true);
    } else {
      timeline_entry::waited(p.what, set_.load(), since);
    }
  };
  try {
    p.end.wait(limit);
  } catch (const hvd::error& e) {
    if (!p.end.poll()) {
      if (e.kind() == hvd::error_kind::timeout) return false;
      throw;
    }
  }
  count();
  p.end.wait();  // its own error
  return true;
}

std::shared_ptr<std::byte> group::alloc_shared(std::size_t bytes) {
  return calls_.call([&](hvd::any_transport& comm) { return hold(comm.alloc_shared<std::byte>(bytes)); });
}
std::shared_ptr<std::byte> group::map_shared(int fd, std::size_t bytes) {
  return calls_.call([&](hvd::any_transport& comm) { return hold(comm.map_shared<std::byte>(fd, bytes)); });
}
hvd::any_transport group::split() {
  return calls_.call([&](hvd::any_transport& comm) { return comm.split(0, comm.rank()); });
}
void group::start_timeline(const std::string& path) {
  calls_.call([&](hvd::any_transport& comm) {
    const auto clock = hvd::detail::agree_on_clock(erase(comm).self(), hvd::detail::random_word());
    timeline_entry::start(path, rank(), size(), clock);
  });
}
void group::describe(int set, const std::vector<int>& ranks) {
  set_ = set;
  timeline_entry::describe(set, ranks);
}

hvd::any_transport alone() { return hvd::any_transport(hvd::SelfTransport()); }
hvd::any_transport over_shared_memory(const std::string& name, int rank, int size, double timeout, bool check) {
  auto options = hvd::sharing_options::from_environment();
  options.failure.start_timeout = hvd::failure_policy::seconds(timeout);
  if (check) options.failure.check = true;
  return hvd::any_transport(hvd::ShmTransport(name, rank, size, options));
}

}  // namespace hvd_python
