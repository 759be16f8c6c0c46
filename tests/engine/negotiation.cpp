// tests/engine/negotiation.cpp: signatures, the signature cache, plans and the agreement of ranks, without transports
// or threads.
#include <hvd/engine/negotiation.hpp>
#include <hvd/engine/plan.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace {

using hvd::dtype;
using hvd::memory_kind;
using hvd::operation;
using hvd::reduce_op;
using hvd::request;
using hvd::tensor;
using namespace hvd::detail;
using names = std::vector<std::string>;
using numbers = std::vector<std::uint32_t>;

request asked(const std::string& name, std::vector<std::size_t> shape = {4}, operation kind = operation::allreduce) {
  request r;
  r.kind = kind;
  r.name = name;
  if (kind == operation::barrier) return r;
  tensor t;
  t.shape = std::move(shape);
  r.tensors.push_back(std::move(t));
  return r;
}
announcement told(const request& r, int rank = 0) { return {r.name, signature_of(r), r.priority, rank, 1}; }

/// Ranks that talk by function calls.
class ranks {
 public:
  explicit ranks(int size, std::size_t capacity = 1024) {
    for (int r = 0; r != size; ++r) all_.emplace_back(capacity, r, size);
  }
  negotiation& operator[](int rank) { return all_[static_cast<std::size_t>(rank)]; }

  void add(int rank, request r, std::uint64_t place = 0) {
    auto s = std::make_shared<submission>(std::move(r));
    s->sign.place = place;
    (*this)[rank].add(std::move(s));
  }
  void add_all(const request& r) {
    for (int rank = 0; rank != static_cast<int>(all_.size()); ++rank) add(rank, r);
  }
  [[nodiscard]] bool news() const {
    return std::any_of(all_.begin(), all_.end(), [](const negotiation& n) { return n.has_news(); });
  }

  /// What a round has brought.
  struct outcome {
    names ran{};
    std::map<std::string, std::string> refused{};
    int joined = -1;
    bool talked = false;
  };
  outcome round() {
    std::vector<std::uint64_t> words;
    for (negotiation& n : all_) {
      const auto own = n.words();
      words.resize(own.size());
      REQUIRE(words.size() == own.size());  // or ranks would wait for bytes that do not come
      for (std::size_t i = 0; i != own.size(); ++i) words[i] |= own[i];
    }
    std::vector<decision> all;
    for (negotiation& n : all_) all.push_back(n.decide(words));
    outcome o;
    for (std::size_t r = 0; r != all.size(); ++r) {
      REQUIRE(all[r].ready == all[0].ready);
      REQUIRE(all[r].talk == all[0].talk);
      REQUIRE(all[r].refused.size() == all[0].refused.size());
      for (const refusal& f : all[r].refused) refuse(o, r, f);
    }
    o.talked = all[0].talk;
    for (const batch& b : plan(all_[0].known(), all[0].ready, 1 << 20, false)) {
      for (const std::uint32_t id : b.ids) {
        const std::string name = all_[0].known()[id].name;
        o.ran.push_back(name);
        for (negotiation& n : all_) {
          REQUIRE(n.known()[id].name == name);
          n.use(id);
          const auto s = n.take(id);
          REQUIRE((s != nullptr || n.joined()));
          if (s) REQUIRE(s->sign == n.known()[id].what);
        }
      }
    }
    if (!o.talked) return o;
    std::vector<std::string> texts;
    for (const negotiation& n : all_) texts.push_back(n.announce());
    // As along a tree.
    for (std::size_t d = 1; d < texts.size(); d *= 2) {
      for (std::size_t r = 0; r + d < texts.size(); r += 2 * d) texts[r] = merge_announcements(texts[r], texts[r + d]);
    }
    for (std::size_t r = 0; r != all_.size(); ++r) {
      for (const refusal& f : all_[r].learn(texts[0])) refuse(o, r, f);
    }
    o.joined = all_[0].last_joined();
    for (negotiation& n : all_) {
      REQUIRE(n.last_joined() == o.joined);
      if (o.joined >= 0) n.rejoin();
    }
    return o;
  }
  /// Rounds until nobody has news; at most `most`.
  outcome settle(int most = 100) {
    outcome all;
    while (news()) {
      REQUIRE(most-- > 0);
      outcome o = round();
      all.ran.insert(all.ran.end(), o.ran.begin(), o.ran.end());
      all.refused.merge(o.refused);
      all.joined = std::max(all.joined, o.joined);
      all.talked = all.talked || o.talked;
    }
    return all;
  }

 private:
  void refuse(outcome& o, std::size_t rank, const refusal& f) {
    all_[rank].take(f.name);
    const auto [at, fresh] = o.refused.emplace(f.name, f.why.what());
    REQUIRE(at->second == f.why.what());  // the same on all ranks
  }
  std::vector<negotiation> all_;
};

}  // namespace

// ---- signatures -------------------------------------------------------------------------------------------------

TEST_CASE("engine signatures: what must be equal, and what need not") {
  const request r = asked("w", {4, 3});
  CHECK(signature_of(r).elements(0) == 12);
  request other = r;
  other.name = "v";
  other.priority = 3;
  other.root = 1;  // of no meaning to an allreduce
  CHECK(signature_of(r) == signature_of(other));
  const auto differs = [&](auto change) {
    request changed = r;
    change(changed);
    return signature_of(changed) != signature_of(r);
  };
  CHECK(differs([](request& c) { c.op = reduce_op::min; }));
  CHECK(differs([](request& c) { c.prescale = 2; }));
  CHECK(differs([](request& c) { c.postscale = 2; }));
  CHECK(differs([](request& c) { c.tensors[0].type = dtype::float64; }));
  CHECK(differs([](request& c) { c.tensors[0].shape = {12}; }));
  CHECK(differs([](request& c) { c.tensors.push_back(c.tensors[0]); }));
  CHECK(differs([](request& c) { c.kind = operation::broadcast; }));
  CHECK(differs([](request& c) { c.tensors[0].memory.kind = memory_kind::device; }));
  CHECK(differs([](request& c) { c.wire = dtype::float16; }));
  CHECK_FALSE(differs([](request& c) { c.tensors[0].memory.device = 1; }));  // ranks number their devices
  // Rows of one's own, where the operation allows it.
  CHECK(signature_of(asked("w", {4, 3}, operation::allgather)) ==
        signature_of(asked("w", {0, 3}, operation::allgather)));
  CHECK(signature_of(asked("w", {4, 3}, operation::alltoall)) == signature_of(asked("w", {8, 3}, operation::alltoall)));
  CHECK(signature_of(asked("w", {4, 3}, operation::allgather)) !=
        signature_of(asked("w", {4, 2}, operation::allgather)));
  CHECK(signature_of(asked("w", {4, 3}, operation::reduce_scatter)) !=
        signature_of(asked("w", {5, 3}, operation::reduce_scatter)));
  // With memory for the result, ranks have equally many rows.
  std::byte memory{};
  request into = asked("w", {4, 3}, operation::allgather), short_one = asked("w", {5, 3}, operation::allgather);
  CHECK(signature_of(into) == signature_of(short_one));
  into.tensors[0].out = short_one.tensors[0].out = &memory;
  CHECK(signature_of(into) != signature_of(short_one));
  CHECK(signature_of(into).row_elements(0) == 3);
  CHECK(signature_of(into).elements(0) == 12);
  // Three rows of one element, and rows of three elements.
  request vector = asked("w", {3}, operation::allgather);
  vector.tensors[0].out = &memory;
  const announcement a = told(vector, 0), b = told(asked("w", {5, 3}, operation::allgather), 2);
  CHECK(a.what.shapes == b.what.shapes);
  CHECK(a.what != b.what);
  CHECK(difference(a, b) ==
        "one shape on all ranks, as with memory for the result, required on rank 0, not required on rank 2");
  // As where that is asked for.
  for (const operation kind : {operation::allgather, operation::alltoall}) {
    request four = asked("w", {4, 3}, kind), eight = asked("w", {8, 3}, kind);
    four.even = eight.even = true;
    CHECK(signature_of(four).row_elements(0) == 3);
    CHECK(difference(told(four, 0), told(eight, 2)) == "shape [4, 3] on rank 0, [8, 3] on rank 2");
    CHECK(difference(told(four, 0), told(asked("w", {4, 3}, kind), 2)) ==
          "one shape on all ranks, as with memory for the result, required on rank 0, not required on rank 2");
  }
  request root = asked("w", {4}, operation::broadcast);
  root.root = 1;
  CHECK(signature_of(root) != signature_of(asked("w", {4}, operation::broadcast)));
}

TEST_CASE("engine signatures: as bytes and back") {
  request r = asked("a name, \"quoted\"", {4, 0, 3});
  r.op = reduce_op::product;
  r.prescale = 0.1;
  r.postscale = -3e300;
  r.priority = -7;
  r.tensors.push_back({.type = dtype::bfloat16, .shape = {}});
  r.tensors.front().memory.kind = memory_kind::device;
  r.wire = dtype::float16;
  announcement a = told(r, 5);
  a.what.place = 0x123456789ABCDEF1;
  std::string text;
  put(text, a);
  std::string_view rest = text;
  const announcement b = take_announcement(rest);
  CHECK(rest.empty());
  CHECK(b.name == a.name);
  CHECK(b.what == a.what);
  CHECK(b.what.place == a.what.place);
  CHECK(b.priority == -7);
  CHECK(b.rank == 5);
  CHECK(b.ranks == 1);
  for (std::size_t n = 0; n != text.size(); ++n) {  // a text that ends early is an error at every length
    std::string_view part = std::string_view(text).substr(0, n);
    CHECK_THROWS_AS(take_announcement(part), hvd::error);
  }
}

TEST_CASE("engine signatures: what no rank can have submitted is refused") {
  const auto refused = [](auto change) {
    announcement a = told(asked("w", {4, 3}), 0);
    change(a.what);
    std::string text;
    put(text, a);
    std::string_view rest = text;
    CHECK_THROWS_AS(take_announcement(rest), hvd::error);
  };
  refused([](signature& s) { s.kind = static_cast<operation>(static_cast<int>(operation::exscan) + 1); });
  refused([](signature& s) { s.kind = static_cast<operation>(255); });
  refused([](signature& s) { s.op = static_cast<reduce_op>(6); });
  refused([](signature& s) { s.memory = static_cast<memory_kind>(2); });
  refused([](signature& s) { s.wire = dtype::int8; });
  refused([](signature& s) { s.types[0] = dtype::user; });
  refused([](signature& s) { s.types[0] = static_cast<dtype>(200); });
  refused([](signature& s) { s.shapes[0] = {std::size_t{1} << 32, std::size_t{1} << 32}; });
  refused([](signature& s) { s.shapes[0] = {std::size_t{1} << 62}; });
  refused([](signature& s) { s.kind = operation::reduce_scatter, s.shapes[0].clear(); });
}

TEST_CASE("engine signatures: the difference in a sentence") {
  const request r = asked("w", {4, 3});
  const auto said = [&](auto change) {
    request changed = r;
    change(changed);
    return difference(told(r, 0), told(changed, 2));
  };
  CHECK(said([](request& c) { c.kind = operation::broadcast; }) ==
        "operation allreduce on rank 0, broadcast on rank 2");
  CHECK(said([](request& c) { c.tensors.push_back(c.tensors[0]); }) == "number of tensors 1 on rank 0, 2 on rank 2");
  CHECK(said([](request& c) { c.tensors[0].type = dtype::int8; }) == "element type float32 on rank 0, int8 on rank 2");
  CHECK(said([](request& c) { c.tensors[0].shape = {}; }) == "shape [4, 3] on rank 0, [] on rank 2");
  CHECK(said([](request& c) { c.tensors[0].memory.kind = memory_kind::device; }) ==
        "memory host on rank 0, device on rank 2");
  CHECK(said([](request& c) { c.wire = dtype::bfloat16; }) == "type on the wire its own on rank 0, bfloat16 on rank 2");
  CHECK(said([](request& c) { c.op = reduce_op::max; }) == "reduction sum on rank 0, max on rank 2");
  CHECK(said([](request& c) { c.prescale = 0.5; }) == "prescale factor 1 on rank 0, 0.5 on rank 2");
  CHECK(said([](request& c) { c.postscale = 0.5; }) == "postscale factor 1 on rank 0, 0.5 on rank 2");
  request two = r;
  two.tensors.push_back(two.tensors[0]);
  request changed = two;
  changed.tensors[1].shape = {1};
  CHECK(difference(told(two, 1), told(changed, 3)) == "shape of tensor 1 [4, 3] on rank 1, [1] on rank 3");
  request root = asked("w", {4}, operation::broadcast);
  root.root = 1;
  CHECK(difference(told(asked("w", {4}, operation::broadcast)), told(root, 1)) == "root 0 on rank 0, 1 on rank 1");
  CHECK(difference(told(asked("w", {4, 3}, operation::allgather)), told(asked("w", {4}, operation::allgather), 1)) ==
        "shape [any, 3] on rank 0, [any] on rank 1");
}

TEST_CASE("engine commands: their names and arguments are what ranks compare") {
  const auto form = [](const command& c) {
    const request r = request_of(c);
    CHECK(r.kind == operation::split);
    REQUIRE(r.tensors.size() == 1);
    return std::pair(r.name, r.tensors[0].shape);
  };
  using shape = std::vector<std::size_t>;
  CHECK(form(add_process_set{{2, 0}}) == std::pair(std::string("engine: add_process_set"), shape{2, 0}));
  CHECK(form(remove_process_set{7}) == std::pair(std::string("engine: remove_process_set"), shape{7}));
  CHECK(form(alloc_bucket{4096}) == std::pair(std::string("engine: alloc_bucket"), shape{4096, 0}));
  CHECK(form(alloc_bucket{4096, hvd::memory_kind::device}) ==
        std::pair(std::string("engine: alloc_bucket"), shape{4096, 1}));
  const submission s(command(alloc_bucket{8}));
  REQUIRE(s.ask);
  CHECK(std::get<alloc_bucket>(*s.ask).bytes == 8);
  CHECK_FALSE(submission(asked("engine: alloc_bucket", {8})).ask);  // a name alone is no command
}

// ---- the signature cache
// -------------------------------------------------------------------------------------------------

TEST_CASE("engine signature cache: numbers, variants of a name, and what goes when it is full") {
  signature_cache l(3);
  bits wanted;
  int evicted = 0;
  const auto add = [&](const std::string& name, std::size_t n) {
    return static_cast<int>(l.add(told(asked(name, {n})), wanted, evicted));
  };
  const auto find = [&](const std::string& name, std::size_t n) {
    return l.find(name, signature_of(asked(name, {n})));
  };
  CHECK(find("a", 1) == -1);
  CHECK(add("a", 1) == 0);
  CHECK(add("b", 1) == 1);
  CHECK(add("a", 2) == 2);
  CHECK(evicted == -1);
  CHECK(find("a", 1) == 0);
  CHECK(find("a", 2) == 2);
  CHECK(find("a", 3) == -1);
  CHECK(find("b", 1) == 1);
  names ambiguous;
  const auto list = [&] {
    ambiguous.clear();
    l.each_ambiguous([&](const std::string& name, const numbers&) { ambiguous.push_back(name); });
    return ambiguous;
  };
  CHECK(list() == names{"a"});
  l.use(0);
  CHECK(add("c", 1) == 1);  // b was not used for longest
  CHECK(evicted == 1);
  CHECK(find("b", 1) == -1);
  wanted.resize(l.size());
  wanted.set(2);
  CHECK(add("d", 1) == 0);  // a(2) is older, but somebody has submitted it
  CHECK(evicted == 0);
  CHECK(list().empty());
  wanted.set(0);
  wanted.set(1);
  CHECK(add("e", 1) == 3);  // all are in use: beyond the capacity
  CHECK(evicted == -1);
  CHECK(l.size() == 4);
  wanted.clear();
  CHECK(add("f", 1) == 2);
  CHECK(evicted == 2);
}

// ---- plans ------------------------------------------------------------------------------------------------------

namespace {

/// A signature cache of these requests, numbered in their order.
signature_cache of(const std::vector<request>& all) {
  signature_cache l(1000);
  int evicted = 0;
  for (const request& r : all) l.add(told(r), bits(), evicted);
  return l;
}
/// The plan for all of them, ready in reverse order.
std::vector<numbers> planned(const std::vector<request>& all, std::size_t threshold, bool groups_alone = false) {
  const signature_cache l = of(all);
  numbers ready;
  for (std::size_t i = all.size(); i != 0; --i) ready.push_back(static_cast<std::uint32_t>(i - 1));
  std::vector<numbers> ids;
  for (const batch& b : plan(l, ready, threshold, groups_alone)) ids.push_back(b.ids);
  return ids;
}
request urgent(request r, int priority) {
  r.priority = priority;
  return r;
}
request group(const std::string& name, std::size_t tensors) {
  request r = asked(name);
  r.tensors.resize(tensors, r.tensors[0]);
  return r;
}

}  // namespace

TEST_CASE("engine plans: by number, as much as fits, looking ahead") {
  const std::vector<request> all = {asked("a", {10}), asked("b", {20}), asked("c", {10}),
                                    asked("d", {1})};  // 40 80 40 4
  CHECK(planned(all, 0) == std::vector<numbers>{{0}, {1}, {2}, {3}});
  CHECK(planned(all, 1) == std::vector<numbers>{{0}, {1}, {2}, {3}});
  CHECK(planned(all, 84) == std::vector<numbers>{{0, 2, 3}, {1}});
  CHECK(planned(all, 80) == std::vector<numbers>{{0, 2}, {1}, {3}});
  CHECK(planned(all, 120) == std::vector<numbers>{{0, 1}, {2, 3}});
  CHECK(planned(all, 164) == std::vector<numbers>{{0, 1, 2, 3}});
  CHECK(planned({}, 164).empty());
}

TEST_CASE("engine plans: what runs together") {
  request f64 = asked("t");
  f64.tensors[0].type = dtype::float64;
  request min = asked("m"), pre = asked("pre"), post = asked("post"), root = asked("r", {4}, operation::broadcast);
  min.op = reduce_op::min;
  pre.prescale = 2;
  post.postscale = 2;
  root.root = 1;
  request device = asked("d");
  device.tensors[0].memory.kind = memory_kind::device;
  const std::size_t all = 1000;
  CHECK(planned({asked("a"), device, asked("b"), device}, all) == std::vector<numbers>{{0, 2}, {1, 3}});
  CHECK(planned({asked("a"), f64}, all) == std::vector<numbers>{{0, 1}});  // types may be mixed
  CHECK(planned({asked("a"), min}, all) == std::vector<numbers>{{0}, {1}});
  CHECK(planned({asked("a"), pre, post}, all) == std::vector<numbers>{{0}, {1}, {2}});
  CHECK(planned({asked("a"), asked("b", {4}, operation::reduce_scatter)}, all) == std::vector<numbers>{{0}, {1}});
  for (const operation kind : {operation::allgather, operation::broadcast, operation::reduce_scatter}) {
    CHECK(planned({asked("a", {4}, kind), asked("b", {4}, kind)}, all) == std::vector<numbers>{{0, 1}});
  }
  for (const operation kind : {operation::alltoall, operation::barrier}) {
    CHECK(planned({asked("a", {4}, kind), asked("b", {4}, kind)}, all) == std::vector<numbers>{{0}, {1}});
  }
  CHECK(planned({root, asked("b", {4}, operation::broadcast), root}, all) == std::vector<numbers>{{0, 2}, {1}});
}

TEST_CASE("engine plans: priorities and groups") {
  const std::vector<request> all = {asked("a"), urgent(asked("b"), 1), urgent(asked("c"), -1), urgent(asked("d"), 1)};
  CHECK(planned(all, 0) == std::vector<numbers>{{1}, {3}, {0}, {2}});
  CHECK(planned(all, 32) == std::vector<numbers>{{1, 3}, {0, 2}});
  CHECK(planned(all, 1000) == std::vector<numbers>{{1, 3, 0, 2}});
  // A group is never divided, and is alone where that is asked for.
  const std::vector<request> grouped = {asked("a"), group("g", 3), asked("b")};
  CHECK(planned(grouped, 1000) == std::vector<numbers>{{0, 1, 2}});
  CHECK(planned(grouped, 1000, true) == std::vector<numbers>{{0, 2}, {1}});
  CHECK(planned(grouped, 40) == std::vector<numbers>{{0, 2}, {1}});
  CHECK(planned(grouped, 0) == std::vector<numbers>{{0}, {1}, {2}});
}

// ---- agreement --------------------------------------------------------------------------------------------------

TEST_CASE("engine negotiation: negotiated once, then one round without words") {
  for (const int p : {1, 2, 3, 4}) {
    ranks all(p);
    CHECK_FALSE(all.news());
    all.add_all(asked("b"));
    all.add_all(asked("a"));
    auto first = all.round();
    CHECK(first.talked);
    CHECK(first.ran.empty());
    CHECK(all.news());
    auto second = all.round();
    CHECK_FALSE(second.talked);
    CHECK(second.ran == names{"b", "a"});  // in the order in which they came
    CHECK_FALSE(all.news());
    CHECK(all[0].idle());
    all.add_all(asked("a"));
    all.add_all(asked("b"));
    auto third = all.round();
    CHECK_FALSE(third.talked);
    CHECK(third.ran == names{"b", "a"});
    CHECK_FALSE(all.news());
  }
}

TEST_CASE("engine negotiation: what one rank lacks waits, alone") {
  ranks all(3);
  for (const char* name : {"a", "b"}) all.add_all(asked(name));
  CHECK(all.settle().ran == names{"a", "b"});
  all.add(0, asked("b"));
  all.add(0, asked("a"));
  all.add(1, asked("a"));
  all.add(1, asked("b"));
  all.add(2, asked("b"));
  CHECK(all.settle().ran == names{"b"});
  all.add(2, asked("new"));  // a new tensor delays nobody else
  all.add(2, asked("a"));
  auto o = all.round();
  CHECK(o.ran == names{"a"});
  CHECK(o.talked);
  CHECK(all.settle().ran.empty());
  CHECK_FALSE(all[2].idle());
  all.add(0, asked("new"));
  all.add(1, asked("new"));
  o = all.round();
  CHECK(o.ran == names{"new"});
  CHECK_FALSE(o.talked);  // rank 2 has told it to all
}

TEST_CASE("engine negotiation: priorities are those of the lowest rank when the name was new") {
  ranks all(2);
  all.add(0, urgent(asked("a"), 1));
  all.add(1, urgent(asked("a"), 5));
  all.add(0, urgent(asked("b"), 2));
  all.add(1, urgent(asked("b"), 0));
  CHECK(all.settle().ran == names{"b", "a"});
}

TEST_CASE("engine negotiation: a shape that changes, on some ranks first, and comes back") {
  ranks all(2);
  all.add_all(asked("a", {4}));
  all.add_all(asked("b"));
  CHECK(all.settle().ran == names{"a", "b"});
  all.add(0, asked("a", {5}));
  CHECK(all.settle().ran.empty());
  all.add(1, asked("a", {5}));
  all.add_all(asked("b"));
  auto o = all.settle();
  CHECK_FALSE(o.talked);
  CHECK(o.ran == names{"b", "a"});
  all.add_all(asked("a", {4}));  // known still
  o = all.round();
  CHECK_FALSE(o.talked);
  CHECK(o.ran == names{"a"});
  CHECK(all[0].known().size() == 3);
}

TEST_CASE("engine negotiation: mismatches are refused once all have spoken, and the job goes on") {
  ranks all(3);
  all.add_all(asked("a", {4}));
  CHECK(all.settle().ran == names{"a"});
  // New on one rank, known on another, missing on the third.
  all.add(0, asked("a", {4}));
  all.add(1, asked("a", {5}));
  CHECK(all.settle().refused.empty());
  all.add(2, asked("a", {4}));
  auto o = all.settle();
  CHECK(o.ran.empty());
  REQUIRE(o.refused.size() == 1);
  CHECK(o.refused["a"] ==
        "hvd: allreduce \"a\": ranks do not agree: shape [4] on rank 0, [5] on rank 1; all ranks must submit the same");
  for (int r = 0; r != 3; ++r) CHECK(all[r].idle());
  // Both known by now: still refused, and after that all works.
  all.add(0, asked("a", {5}));
  all.add(1, asked("a", {4}));
  all.add(2, asked("a", {4}));
  CHECK(all.settle().refused["a"].find("shape [5] on rank 0, [4] on rank 1") != std::string::npos);
  all.add_all(asked("a", {5}));
  CHECK(all.settle().ran == names{"a"});
  // All new, three meanings.
  request max = asked("c");
  max.op = reduce_op::max;
  all.add(0, asked("c"));
  all.add(1, max);
  all.add(2, asked("c", {4}, operation::allgather));
  o = all.settle();
  CHECK(o.refused["c"] == "hvd: allreduce \"c\": ranks do not agree: reduction sum on rank 0, max on rank 1; all ranks "
                          "must submit the same");
  CHECK_FALSE(all.news());
}

TEST_CASE("engine negotiation: capacities below what is in flight") {
  for (const std::size_t capacity : std::vector<std::size_t>{0, 1, 2, 5}) {
    for (const int p : {1, 2, 3}) {
      CAPTURE(capacity);
      CAPTURE(p);
      ranks all(p, capacity);
      for (int step = 0; step != 3; ++step) {
        names wanted;
        for (int i = 0; i != 9; ++i) {
          wanted.push_back("t" + std::to_string(i));
          for (int r = 0; r != p; ++r) all.add(r, asked("t" + std::to_string((i + r) % 9)));
        }
        names ran = all.settle().ran;
        std::sort(ran.begin(), ran.end());
        CHECK(ran == wanted);
      }
      // One at a time needs no more than its capacity.
      ranks few(p, capacity);
      for (int i = 0; i != 30; ++i) {
        few.add_all(asked("t" + std::to_string(i % 7)));
        CHECK(few.settle().ran.size() == 1);
      }
      CHECK(few[0].known().size() == std::max<std::size_t>(capacity, 1));
    }
  }
}

TEST_CASE("engine negotiation: registered memory on some ranks, or at other places, is noted by all") {
  const auto alike = [](ranks& all, int size) {
    for (int r = 1; r != size; ++r) REQUIRE(all[r].alike(0) == all[0].alike(0));
    return all[0].alike(0);
  };
  // All at once, known with equal places, and then one rank with another: one more talk, and none after it.
  for (const int p : {2, 3, 4}) {
    for (const auto& [first, later] : {std::pair{1, 0}, std::pair{1, 3}, std::pair{0, 1}}) {
      CAPTURE(p);
      CAPTURE(first);
      ranks all(p);
      for (int r = 0; r != p; ++r) all.add(r, asked("a"), static_cast<std::uint64_t>(first));
      CHECK(all.settle().ran == names{"a"});
      CHECK(alike(all, p));
      for (int r = 0; r != p; ++r) all.add(r, asked("a"), static_cast<std::uint64_t>(r == p - 1 ? later : first));
      auto o = all.settle();
      CHECK(o.ran == names{"a"});
      CHECK(o.talked);
      CHECK(o.refused.empty());
      CHECK_FALSE(alike(all, p));
      for (const int odd : {first, later}) {
        for (int r = 0; r != p; ++r) all.add(r, asked("a"), static_cast<std::uint64_t>(odd));
        o = all.settle();
        CHECK(o.ran == names{"a"});
        CHECK_FALSE(o.talked);
        CHECK_FALSE(alike(all, p));
      }
    }
  }
  // Different when the name is new: in one round, and one rank after the others.
  for (const bool together : {true, false}) {
    ranks all(3);
    all.add(0, asked("a"), 1);
    all.add(1, asked("a"), 5);
    if (!together) CHECK(all.settle().ran.empty());
    all.add(2, asked("a"), 1);
    CHECK(all.settle().ran == names{"a"});
    CHECK_FALSE(alike(all, 3));
  }
  // Submitted between the words of a round and its end: not run before all know.
  ranks late(2);
  late.add(0, asked("a"), 1);
  std::vector<std::uint64_t> words;
  for (int r = 0; r != 2; ++r) {
    const auto own = late[r].words();
    words.resize(own.size());
    for (std::size_t i = 0; i != own.size(); ++i) words[i] |= own[i];
  }
  for (int r = 0; r != 2; ++r) CHECK(late[r].decide(words).talk);
  late.add(1, asked("a"), 7);
  const std::string text = merge_announcements(late[0].announce(), late[1].announce());
  for (int r = 0; r != 2; ++r) CHECK(late[r].learn(text).empty());
  CHECK(late.settle().ran == names{"a"});
  CHECK_FALSE(alike(late, 2));
  // The zeros of a rank that has joined lie in no registered memory.
  for (const std::uint64_t place : {0, 1}) {
    ranks joined(2);
    for (int r = 0; r != 2; ++r) joined.add(r, asked("a"), place);
    CHECK(joined.settle().ran == names{"a"});
    CHECK(alike(joined, 2));
    joined[1].join();
    joined.add(0, asked("a"), place);
    CHECK(joined.settle().ran == names{"a"});
    CHECK(alike(joined, 2) == (place == 0));
  }
}

TEST_CASE("engine negotiation: evicted after it was submitted and before it was told") {
  ranks all(2, 1);
  all.add_all(asked("a"));
  CHECK(all.settle().ran == names{"a"});
  // Rank 0 speaks of b; rank 1 submits a, as known, between its words and what it learns.
  all.add(0, asked("b"));
  std::vector<std::uint64_t> words = all[0].words();
  const auto other = all[1].words();
  for (std::size_t i = 0; i != words.size(); ++i) words[i] |= other[i];
  all[0].decide(words);
  all[1].decide(words);
  all.add(1, asked("a"));
  const std::string text = merge_announcements(all[0].announce(), all[1].announce());
  CHECK(all[0].learn(text).empty());
  CHECK(all[1].learn(text).empty());
  CHECK(all[0].known().size() == 1);
  CHECK(all[1].has_news());
  CHECK(all.settle().ran.empty());
  all.add(0, asked("a"));
  all.add(1, asked("b"));
  names ran = all.settle().ran;
  std::sort(ran.begin(), ran.end());
  CHECK(ran == names{"a", "b"});
}

TEST_CASE("engine negotiation: of one name the n-th runs with the n-th of the others") {
  ranks all(2, 2);
  for (std::size_t length = 1; length != 6; ++length) all.add(0, asked("x", {length}));
  CHECK(all.settle().ran.empty());
  for (std::size_t length = 1; length != 3; ++length) all.add(1, asked("x", {length}));
  CHECK(all.settle().ran == names{"x", "x"});
  all.add(1, asked("x", {30}));  // the other rank has 3: both are refused, and what follows is not
  all.add(1, asked("x", {4}));
  ranks::outcome o = all.settle();
  CHECK(o.refused.size() == 1);
  CHECK(o.ran == names{"x"});
  CHECK(all[1].idle());
  all.add(1, asked("x", {5}));
  CHECK(all.settle().ran == names{"x"});
  CHECK(all[0].idle());
}

// ---- join -------------------------------------------------------------------------------------------------------

TEST_CASE("engine join: the last one, by all ranks, again and again") {
  for (const std::size_t capacity : std::vector<std::size_t>{1, 1024}) {
    ranks all(3, capacity);
    for (const int last : {0, 1, 2, 1}) {
      all[(last + 1) % 3].join();
      CHECK(all.settle().joined == -1);
      all.add(last, asked("a"));
      all.add((last + 2) % 3, asked("a"));
      CHECK(all.settle().ran == names{"a"});
      all[(last + 2) % 3].join();
      CHECK(all.settle().joined == -1);
      all.add(last, asked("a"));
      all.add(last, asked("b"));
      auto o = all.settle();
      std::sort(o.ran.begin(), o.ran.end());
      CHECK(o.ran == names{"a", "b"});
      all[last].join();
      CHECK(all.settle().joined == last);
      for (int r = 0; r != 3; ++r) CHECK(all[r].idle());
    }
    for (int r = 0; r != 3; ++r) all[r].join();  // in the same round: the highest
    CHECK(all.settle().joined == 2);
  }
}

TEST_CASE("engine join: what zeros would spoil is refused, and what was submitted before runs") {
  ranks all(2);
  all[1].join();
  request min = asked("min");
  min.op = reduce_op::min;
  all.add(0, min);
  all.add(0, asked("gather", {4}, operation::allgather));
  all.add(0, asked("barrier", {}, operation::barrier));
  request mean = asked("mean"), ada = asked("ada");
  mean.op = reduce_op::average;
  ada.op = reduce_op::adasum;
  all.add(0, mean);
  all.add(0, ada);
  auto o = all.settle();
  std::sort(o.ran.begin(), o.ran.end());
  CHECK(o.ran == names{"ada", "barrier", "mean"});
  CHECK(o.refused.size() == 2);
  CHECK(o.refused["min"] ==
        "hvd: allreduce \"min\" with min cannot run after a rank has joined, because that rank would have to give "
        "data; allowed then: allreduce with sum, average or adasum, to which it gives zeros, and barrier");
  CHECK(o.refused["gather"].find("allgather \"gather\" cannot run after a rank has joined") != std::string::npos);
  all[0].join();
  CHECK(all.settle().joined == 0);
}

TEST_CASE("engine join: what a rank submitted before it joined runs before the join ends") {
  for (const bool known : {false, true}) {
    ranks all(2);
    if (known) {
      all.add_all(asked("a"));
      all.settle();
    }
    all.add(0, asked("a"));
    all[0].join();
    all[1].join();  // in the same round
    auto o = all.settle();
    CHECK(o.ran == names{"a"});
    CHECK(o.joined == 1);
    CHECK(all[0].idle());
  }
  // Refused, and the join ends all the same.
  ranks all(2);
  all.add(0, asked("a"));
  all.add(1, asked("a", {5}));
  all[0].join();
  all[1].join();
  auto o = all.settle();
  CHECK(o.refused.size() == 1);
  CHECK(o.joined == 1);
}

TEST_CASE("engine negotiation: words of a round that no rank can have said are an error") {
  negotiation n(16, 0, 2);
  n.add(std::make_shared<submission>(asked("w", {4})));
  n.words();
  n.learn(merge_announcements(n.announce(), n.announce()));
  REQUIRE(n.known().size() == 1);
  std::vector<std::uint64_t> words = n.words();
  words[2] |= std::uint64_t{1} << 40;  // all ranks are ready for an operation that has no number
  words[3] &= ~(std::uint64_t{1} << 40);
  CHECK_THROWS_AS(n.decide(words), hvd::error);

  negotiation joined(16, 0, 2);
  joined.join();
  joined.decide(joined.words());
  announcements all;
  all.joined = 2;
  all.last_join = 5;
  CHECK_THROWS_AS(joined.learn(all.text()), hvd::error);
}

TEST_CASE("engine join: what waits behind another one of its name runs before the join ends") {
  for (const bool other : {true, false}) {
    CAPTURE(other);
    ranks all(2);
    for (std::size_t length = 1; length != 4; ++length) all.add(0, asked("x", {length}));
    if (other) all.add(1, asked("y"));
    all[0].join();
    all[1].join();
    const ranks::outcome o = all.settle();
    CHECK(std::count(o.ran.begin(), o.ran.end(), "x") == 3);
    CHECK(o.joined == 1);
    CHECK(all[0].idle());
    CHECK(all[1].idle());
  }
}

TEST_CASE("engine join: a rank that has joined does not count twice") {
  ranks all(3);
  all.add(0, asked("a", {4}));
  all[0].join();
  all.add(1, asked("a", {5}));
  CHECK(all.settle().refused.empty());  // rank 2 has not spoken
  all.add(2, asked("a", {5}));
  const auto o = all.settle();
  CHECK(o.ran.empty());
  CHECK(o.refused.at("a").find("shape [4] on rank 0, [5] on rank 1") != std::string::npos);
}

// ---- at random --------------------------------------------------------------------------------------------------

TEST_CASE("engine join: a name that a joined rank has submitted with another known signature") {
  ranks all(2);
  for (const std::size_t length : {3U, 5U}) {
    all.add_all(asked("x", {length}));
    CHECK(all.settle().ran == names{"x"});
  }
  all.add(0, asked("x", {3}));
  all.add(1, asked("x", {5}));
  all[1].join();
  const auto o = all.settle();
  CHECK(o.ran.empty());  // not with zeros for the rank that has data of another shape
  CHECK(o.refused.at("x").find("shape [3] on rank 0, [5] on rank 1") != std::string::npos);
}

TEST_CASE("engine join: what is refused before it was ever told") {
  ranks all(2);
  request known = asked("a name that is too long for the small string", {3});
  known.op = reduce_op::min;
  all.add_all(known);
  all.settle();
  request fresh = known;
  fresh.tensors[0].shape = {5};
  all.add(0, known);
  all.add(1, fresh);
  all[1].join();
  const auto o = all.settle();  // nobody tells of what is gone: with the sanitizer
  CHECK(o.ran.empty());
  CHECK(o.refused.count(known.name) == 1);
}

TEST_CASE("engine negotiation: more new names than the signature cache holds do not push each other out") {
  ranks all(2, 4);
  for (int i = 0; i != 40; ++i) all.add_all(asked("name " + std::to_string(i)));
  const auto first = all.round();
  CHECK(first.talked);
  const auto second = all.round();
  CHECK(second.ran.size() == 40);
  CHECK_FALSE(second.talked);
}

TEST_CASE("engine negotiation: random submissions end as they must") {
  const char* const given = std::getenv("HVD_TEST_SEEDS");
  const unsigned seeds = given != nullptr ? static_cast<unsigned>(std::strtoul(given, nullptr, 10)) : 2000;
  for (unsigned seed = 0; seed != seeds; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    const int p = 1 + static_cast<int>(below(5));
    const std::size_t capacity = std::vector<std::size_t>{1, 2, 5, 1024}[below(4)];
    ranks all(p, capacity);
    for (int step = 0; step != 4; ++step) {
      // Each name means one thing to all ranks, or one thing to some and another to the others.
      std::map<std::string, bool> agreed;
      std::vector<std::vector<request>> left(static_cast<std::size_t>(p));
      const std::size_t count = 1 + below(8);
      for (std::size_t i = 0; i != count; ++i) {
        const std::string name = "t" + std::to_string(below(12));
        if (agreed.contains(name)) continue;
        const std::size_t length = 1 + below(2);
        const bool differ = p > 1 && below(5) == 0;
        const int odd = static_cast<int>(below(static_cast<std::size_t>(p)));
        agreed[name] = !differ;
        for (int r = 0; r != p; ++r)
          left[static_cast<std::size_t>(r)].push_back(asked(name, {differ && r == odd ? 3 : length}));
      }
      for (auto& l : left) std::shuffle(l.begin(), l.end(), random);
      names ran;
      std::map<std::string, std::string> refused;
      const auto note = [&](ranks::outcome o) {
        ran.insert(ran.end(), o.ran.begin(), o.ran.end());
        refused.merge(o.refused);
      };
      while (std::any_of(left.begin(), left.end(), [](const auto& l) { return !l.empty(); })) {
        const auto r = below(static_cast<std::size_t>(p));
        if (below(3) == 0 && all.news()) note(all.round());
        if (left[r].empty()) continue;
        all.add(static_cast<int>(r), std::move(left[r].back()));
        left[r].pop_back();
      }
      note(all.settle());
      REQUIRE(ran.size() + refused.size() == agreed.size());
      for (const std::string& name : ran) REQUIRE(agreed.at(name));
      for (const auto& [name, why] : refused) REQUIRE_FALSE(agreed.at(name));
      for (int r = 0; r != p; ++r) REQUIRE(all[r].idle());
    }
  }
}
