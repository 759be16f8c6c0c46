// tests/campaign/fuzz/negotiation.cpp: one rank's part in agreeing on what runs, while the other ranks say anything.
//
// An input is a sequence of steps: this rank submits, joins, hears the words of a round, hears a text. What a round
// decides is done as hvd/engine/driver.hpp does it, but for the data.
// Findings besides those of fuzz.hpp: a number that the signature cache does not have, and a plan that is not of what
// is ready.
#include <hvd/engine/negotiation.hpp>
#include <hvd/engine/plan.hpp>

#include "fuzz.hpp"

#include <algorithm>

using namespace hvd::detail;

namespace {

std::shared_ptr<submission> submitted(fuzz::input& in, unsigned name) {
  hvd::request r;
  r.kind = std::array{hvd::operation::allreduce, hvd::operation::allgather, hvd::operation::broadcast,
                      hvd::operation::barrier}[in.below(4)];
  r.name = std::string(1, static_cast<char>('a' + name));
  r.op = static_cast<hvd::reduce_op>(in.below(6));
  r.priority = static_cast<int>(in.below(3));
  for (unsigned n = in.below(3); n != 0; --n) {
    hvd::tensor t;
    t.type = static_cast<hvd::dtype>(in.below(15));
    t.shape.assign(1 + in.below(2), in.below(5));
    r.tensors.push_back(t);
  }
  return std::make_shared<submission>(std::move(r));
}

}  // namespace

FUZZ(in) {
  const int size = 1 + static_cast<int>(in.below(4));
  negotiation n(in.below(4), 0, size);
  bool names[8] = {};
  const auto ended = [&](const std::shared_ptr<submission>& s) {
    if (s) names[static_cast<std::size_t>(s->what.name.front() - 'a')] = false;
  };
  for (int steps = 0; !in.ended() && steps != 64; ++steps) {
    switch (in.below(4)) {
      case 0: {
        const unsigned name = in.below(8);
        if (!std::exchange(names[name], true)) n.add(submitted(in, name));
        break;
      }
      case 1:
        if (!n.joined()) n.join();
        break;
      case 2: {
        std::vector<std::uint64_t> words = n.words();
        const bool sparse = in.below(2) == 0;
        for (std::uint64_t& w : words) w |= sparse ? std::uint64_t{in.take<std::uint8_t>()} : in.take<std::uint64_t>();
        decision d;
        if (!fuzz::accepts([&] { d = n.decide(words); })) return;  // the driver ends
        for (const refusal& r : d.refused) ended(n.take(r.name));
        for (const std::uint32_t id : d.ready) fuzz::require(id < n.known().size(), "a number of nothing");
        const auto batches = plan(n.known(), d.ready, in.take<std::uint32_t>(), in.below(2) == 1);
        std::vector<std::uint32_t> planned;
        for (const batch& b : batches) planned.insert(planned.end(), b.ids.begin(), b.ids.end());
        std::sort(planned.begin(), planned.end());
        fuzz::require(planned == d.ready, "a plan of something else");
        for (const std::uint32_t id : planned) {
          n.use(id);
          ended(n.take(id));
        }
        if (d.talk) (void)announcements::from(n.announce());
        break;
      }
      default: {
        std::string text(in.text(in.take<std::uint16_t>() % 512));
        if (in.below(2) == 1) {  // with what this rank has said
          std::string merged;
          if (!fuzz::accepts([&] { merged = merge_announcements(n.announce(), text); })) return;
          text = merged;
        }
        std::vector<refusal> refused;
        if (!fuzz::accepts([&] { refused = n.learn(text); })) return;
        for (const refusal& r : refused) {
          fuzz::require(!r.name.empty() || r.why.kind() == hvd::error::mismatch, "a refusal without a reason");
          ended(n.take(r.name));
        }
        if (n.last_joined() >= 0 && n.joined()) n.rejoin();
      }
    }
    for (std::uint32_t id = 0; id != n.known().size(); ++id) {
      const submission* const s = n.find(id);
      fuzz::require(s == nullptr || s->what.name == n.known()[id].name, "a number of another name");
    }
  }
}
