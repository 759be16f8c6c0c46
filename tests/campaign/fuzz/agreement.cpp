// tests/campaign/fuzz/agreement.cpp: rounds and texts of the engine, over a transport on which the peers send anything.
//
// Findings besides those of fuzz.hpp: words that are not what was sent.
#include <hvd/engine/agreement.hpp>
#include <hvd/engine/negotiation.hpp>

#include "fuzz.hpp"

#include <algorithm>

namespace {

/// What arrives is the input, cut as the receiver asks for it; at its end the peers are gone.
struct wire {
  fuzz::input& in;
  int own, ranks;

  [[nodiscard]] int rank() const { return own; }
  [[nodiscard]] int size() const { return ranks; }
  void barrier() {}
  wire split(int, int) { return *this; }
  void send(const std::byte*, std::size_t, int peer) { known(peer); }
  void recv(std::byte* data, std::size_t bytes, int peer) {
    known(peer);
    const std::string_view text = in.text(bytes);
    if (text.size() != bytes) hvd::detail::fail(hvd::error_kind::peer_lost, {"rank ", peer, " is gone"}, peer);
    std::copy(text.begin(), text.end(), reinterpret_cast<char*>(data));
  }
  void exchange(const std::byte*, std::size_t, int, std::byte* data, std::size_t bytes, int from) {
    recv(data, bytes, from);
  }
  bool arrived(int peer) {
    known(peer);
    return true;
  }
  void check() {}

 private:
  void known(int peer) const { fuzz::require(0 <= peer && peer < ranks && peer != own, "a peer that is none"); }
};
static_assert(hvd::Probing<wire>);

}  // namespace

FUZZ(in) {
  const int size = 1 + static_cast<int>(in.below(9)), rank = static_cast<int>(in.below(static_cast<unsigned>(size)));
  wire comm{in, rank, size};
  hvd::detail::erased_transport_on<wire> view(comm);
  hvd::detail::agreement a(view);
  const std::size_t words = 2 + 2 * in.below(3);
  std::atomic<int> waited_for = -1;
  fuzz::accepts([&] {
    a.begin(std::vector<std::uint64_t>(words, 1));
    fuzz::require(a.finish(std::chrono::steady_clock::time_point::max(), {.looks = 1}, waited_for), "no end");
    fuzz::require(a.words().size() == words && (a.words().front() & 1) == 1, "other words");
    const std::string text = a.merge(hvd::detail::announcements{}.text(), &hvd::detail::merge_announcements);
    (void)hvd::detail::announcements::from(text);
  });
}
