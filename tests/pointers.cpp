// Every collective takes pointers with counts.
#include <doctest/doctest.h>

#include <hvd/hvd.hpp>

#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using counts_t = std::vector<std::size_t>;

void equal(const std::vector<int>& got, const std::vector<int>& wanted, const char* what) {
  if (got != wanted) throw std::runtime_error(what);
}

// Two ranks, blocks of 2 and 1 elements where counts differ; thrown by the ranks, caught by the case.
void all_forms(hvd::ThreadTransport& comm) {
  const int r = comm.rank();
  const counts_t counts{2, 1};
  const std::size_t own = counts[static_cast<std::size_t>(r)];
  const std::vector<int> in{1 + r, 2 + r, 3 + r};
  std::vector<int> out(3);

  hvd::allreduce(comm, in.data(), out.data(), 3);
  equal(out, {3, 5, 7}, "allreduce");
  out = in;
  hvd::allreduce(comm, out.data(), 3, hvd::max);
  equal(out, {2, 3, 4}, "allreduce in place");

  hvd::reduce(comm, in.data(), r == 1 ? out.data() : nullptr, 3, hvd::sum, 1);
  if (r == 1) equal(out, {3, 5, 7}, "reduce");
  out = in;
  hvd::reduce(comm, out.data(), 3);
  equal(out, r == 0 ? std::vector<int>{3, 5, 7} : in, "reduce in place");

  std::vector<int> block(own);
  hvd::reduce_scatter_v(comm, in.data(), block.data(), counts);
  equal(block, r == 0 ? std::vector<int>{3, 5} : std::vector<int>{7}, "reduce_scatter_v");
  std::vector<int> one(1);
  hvd::reduce_scatter(comm, in.data(), one.data(), 1);
  equal(one, {r == 0 ? 3 : 5}, "reduce_scatter");

  std::vector<int> pair(2);
  hvd::allgather(comm, in.data(), pair.data(), 1);
  equal(pair, {1, 2}, "allgather");
  hvd::allgather_v(comm, in.data(), out.data(), counts);
  equal(out, {1, 2, 2}, "allgather_v");

  out = in;
  hvd::broadcast(comm, out.data(), 3, 1);
  equal(out, {2, 3, 4}, "broadcast in place");
  hvd::broadcast(comm, r == 0 ? in.data() : nullptr, out.data(), 3);
  equal(out, {1, 2, 3}, "broadcast");

  hvd::alltoall(comm, in.data(), pair.data(), 1);
  equal(pair, {1 + r, 2 + r}, "alltoall");
  pair = {10 * r, 10 * r + 1};
  hvd::alltoall(comm, pair.data(), 1);
  equal(pair, {r, 10 + r}, "alltoall in place");
  // Rank 0 sends 2 and 1, rank 1 sends 2 and 0.
  const counts_t send = r == 0 ? counts_t{2, 1} : counts_t{2, 0};
  const counts_t recv = r == 0 ? counts_t{2, 2} : counts_t{1, 0};
  std::vector<int> received(r == 0 ? 4 : 1);
  hvd::alltoall_v(comm, in.data(), received.data(), send, recv);
  equal(received, r == 0 ? std::vector<int>{1, 2, 2, 3} : std::vector<int>{3}, "alltoall_v");

  hvd::gather(comm, in.data(), r == 0 ? pair.data() : nullptr, 1);
  if (r == 0) equal(pair, {1, 2}, "gather");
  hvd::gather_v(comm, in.data(), r == 1 ? out.data() : nullptr, counts, 1);
  if (r == 1) equal(out, {1, 2, 2}, "gather_v");

  hvd::scatter(comm, r == 0 ? in.data() : nullptr, one.data(), 1);
  equal(one, {1 + r}, "scatter");
  hvd::scatter_v(comm, r == 1 ? in.data() : nullptr, block.data(), counts, 1);
  equal(block, r == 0 ? std::vector<int>{2, 3} : std::vector<int>{4}, "scatter_v");
}

}  // namespace

TEST_CASE("pointers with counts stand for spans") { CHECK_NOTHROW(hvd::thread_run(2, all_forms)); }

TEST_CASE("a wrong number of counts is found before a pointer is followed") {
  hvd::SelfTransport comm;
  int value = 1;
  const counts_t none, two{1, 1};
  CHECK_THROWS_AS(hvd::allgather_v(comm, &value, &value, none), hvd::error);
  CHECK_THROWS_AS(hvd::scatter_v(comm, &value, &value, two), hvd::error);
}

TEST_CASE("an array is a buffer and no pointer: a number behind it is a root") {
  CHECK_NOTHROW(hvd::thread_run(2, [](hvd::ThreadTransport& comm) {
    int values[3] = {comm.rank() + 1, 5, comm.rank()};
    const std::size_t root = 1;
    hvd::broadcast(comm, values, root);
    equal({values, values + 3}, {2, 5, 1}, "broadcast of an array from root 1");
  }));
}

// Each pointer form with a count of `n` elements, or of blocks of `n`, all of which is refused before anything is
// touched. What has a count for each rank gets it for rank 1.
std::vector<std::pair<std::string, std::function<void(hvd::ThreadTransport&)>>> too_long(std::size_t n) {
  static float in[4] = {1, 2, 3, 4}, out[4] = {5, 6, 7, 8};
  static float* const from = in;
  static float* const to = out;
  const counts_t counts{1, n};
  return {
      {"allreduce", [=](auto& c) { hvd::allreduce(c, from, to, n); }},
      {"allreduce", [=](auto& c) { hvd::allreduce(c, to, n); }},
      {"reduce", [=](auto& c) { hvd::reduce(c, from, to, n); }},
      {"reduce", [=](auto& c) { hvd::reduce(c, to, n); }},
      {"broadcast", [=](auto& c) { hvd::broadcast(c, from, to, n); }},
      {"broadcast", [=](auto& c) { hvd::broadcast(c, to, n); }},
      {"reduce_scatter", [=](auto& c) { hvd::reduce_scatter(c, from, to, n); }},
      {"allgather", [=](auto& c) { hvd::allgather(c, from, to, n); }},
      {"alltoall", [=](auto& c) { hvd::alltoall(c, from, to, n); }},
      {"alltoall", [=](auto& c) { hvd::alltoall(c, to, n); }},
      {"gather", [=](auto& c) { hvd::gather(c, from, to, n); }},
      {"scatter", [=](auto& c) { hvd::scatter(c, from, to, n); }},
      {"reduce_scatter_v", [=](auto& c) { hvd::reduce_scatter_v(c, from, to, counts); }},
      {"allgather_v", [=](auto& c) { hvd::allgather_v(c, from, to, counts); }},
      {"alltoall_v", [=](auto& c) { hvd::alltoall_v(c, from, to, counts, counts); }},
      {"gather_v", [=](auto& c) { hvd::gather_v(c, from, to, counts); }},
      {"scatter_v", [=](auto& c) { hvd::scatter_v(c, from, to, counts); }},
      {"send", [=](auto& c) { hvd::send(c, std::span(from, n), 0); }},
      {"recv", [=](auto& c) { hvd::recv(c, std::span(to, n), 0); }},
  };
}

TEST_CASE("a count that no memory holds, such as a negative one, is refused on every rank, and the group goes on") {
  constexpr std::size_t most = PTRDIFF_MAX / sizeof(float);
  for (const std::size_t n : {static_cast<std::size_t>(-1), std::size_t{1} << 62, most + 1, std::size_t{1} << 60}) {
    CHECK_NOTHROW(hvd::thread_run(2, [n](hvd::ThreadTransport& comm) {
      for (const auto& [function, call] : too_long(n)) {
        const bool blocks = function != "allreduce" && function != "reduce" && function != "broadcast";
        if (n <= most && (!blocks || function.ends_with("_v") || function == "send" || function == "recv")) continue;
        std::string said = "accepted";
        try {
          call(comm);
        } catch (const hvd::error& e) {
          said = e.what();
          if (e.kind() != hvd::error::invalid_argument) said += " (of another kind)";
        }
        const std::string where = "hvd: " + function + " on rank " + std::to_string(comm.rank()) + " of 2: ";
        if (!said.starts_with(where)) throw std::runtime_error(said);
        for (const char* const part : {" elements of 4 bytes, ", " can be addressed (a negative count?)"}) {
          if (said.find(part) == std::string::npos) throw std::runtime_error(said);
        }
      }
      int one = 1;
      hvd::allreduce(comm, &one, 1);
      equal({one}, {2}, "allreduce afterwards");
    }));
  }
}

TEST_CASE("the error says what was passed") {
  hvd::SelfTransport comm;
  float value = 1;
  CHECK_THROWS_WITH_AS(
      hvd::allreduce(comm, &value, static_cast<std::size_t>(-1)),
      "hvd: allreduce on rank 0 of 1: input has 18446744073709551615 elements of 4 bytes, more than can "
      "be addressed (a negative count?)",
      hvd::error);
}
