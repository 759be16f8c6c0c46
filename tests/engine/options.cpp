// tests/engine/options.cpp: what the variables set, what is refused, and what one rank sees to be wrong with a request.
#include <hvd/engine/options.hpp>
#include <hvd/engine/validate.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace {

using hvd::dtype;
using hvd::engine_options;
using hvd::error_kind;
using hvd::operation;
using hvd::reduce_op;
using hvd::request;
using hvd::tensor;

engine_options from(const std::map<std::string, std::string>& variables) {
  return engine_options::from_environment([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

/// "kind: sentence" of what f throws; "nothing" if it does not.
template <class F>
std::string complaint(const F& f) {
  try {
    f();
  } catch (const hvd::error& e) {
    return std::string(name(e.kind())) + ": " + std::string(hvd::detail::sentence(e));
  }
  return "nothing";
}
std::string refused(const std::map<std::string, std::string>& variables) {
  return complaint([&] { from(variables); });
}

alignas(16) std::byte memory[4096];

/// A request on one tensor that nothing is wrong with.
request good(operation kind, std::vector<std::size_t> shape = {4}, dtype type = dtype::float32) {
  request r;
  r.kind = kind;
  r.name = "w";
  if (kind == operation::barrier) return r;
  tensor t;
  t.in = memory;
  t.type = type;
  t.shape = std::move(shape);
  r.tensors.push_back(std::move(t));
  return r;
}
std::string refused(const request& r, int rank = 1, int size = 2) {
  return complaint([&] { hvd::detail::validate(r, rank, size); });
}

}  // namespace

TEST_CASE("engine options: what is not set keeps its default") {
  const engine_options o = from({});
  CHECK(o.fusion_threshold == std::size_t{128} << 20);
  CHECK_FALSE(o.threshold_fixed);
  CHECK(o.cache_capacity == 1024);
  CHECK_FALSE(o.groups_alone);
  CHECK(o.watch);
  CHECK(o.stall_warning.count() == 60.0);
  CHECK(o.stall_shutdown.count() == 0.0);
  CHECK(o.timeline.empty());
  CHECK_FALSE(o.mark_cycles);
  CHECK_FALSE(o.autotune);
  CHECK(o.autotune_log.empty());
  CHECK(o.thread);
}

TEST_CASE("engine options: every variable") {
  const engine_options o = from({{"HOROVOD_FUSION_THRESHOLD", "0"},
                                 {"HOROVOD_CACHE_CAPACITY", "7"},
                                 {"HOROVOD_DISABLE_GROUP_FUSION", "1"},
                                 {"HOROVOD_STALL_CHECK_DISABLE", "true"},
                                 {"HOROVOD_STALL_CHECK_TIME_SECONDS", "0.5"},
                                 {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "2"},
                                 {"HOROVOD_TIMELINE", "/tmp/timeline.json"},
                                 {"HOROVOD_TIMELINE_MARK_CYCLES", "on"},
                                 {"HOROVOD_AUTOTUNE", "YES"},
                                 {"HOROVOD_AUTOTUNE_LOG", "log.csv"},
                                 {"HOROVOD_AUTOTUNE_WARMUP_SAMPLES", "0"},
                                 {"HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "5"},
                                 {"HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "30"}});
  CHECK(o.fusion_threshold == 0);
  CHECK(o.threshold_fixed);
  CHECK(o.cache_capacity == 7);
  CHECK(o.groups_alone);
  CHECK_FALSE(o.watch);
  CHECK(o.stall_warning.count() == 0.5);
  CHECK(o.stall_shutdown.count() == 2.0);
  CHECK(o.timeline == "/tmp/timeline.json");
  CHECK(o.mark_cycles);
  CHECK(o.autotune);
  CHECK(o.autotune_log == "log.csv");
  CHECK(o.autotune_warmup == 0);
  CHECK(o.autotune_steps == 5);
  CHECK(o.autotune_samples == 30);
  CHECK(from({{"HOROVOD_TIMELINE", "DYNAMIC"}}).timeline.empty());
  CHECK(from({{"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "0"}}).stall_shutdown.count() == 0.0);
}

TEST_CASE("engine options: every bad value is refused, with variable, value and what is allowed") {
  const std::vector<std::string> integers = {"HOROVOD_FUSION_THRESHOLD", "HOROVOD_CACHE_CAPACITY",
                                             "HOROVOD_AUTOTUNE_WARMUP_SAMPLES", "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",
                                             "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES"};
  for (const std::string& variable : integers) {
    for (const char* value : {"", "x", "1.5", "-1", "1 ", " 1", "0x10", "1e3", "99999999999999999999"}) {
      CAPTURE(variable);
      CAPTURE(value);
      const std::string said = refused({{variable, value}});
      CHECK(said.starts_with("invalid_argument: " + variable + "=\"" + value + "\""));
      CHECK(said.find("; allowed: ") != std::string::npos);
    }
  }
  for (const char* variable : {"HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES"}) {
    CHECK(refused({{variable, "0"}}) ==
          std::string("invalid_argument: ") + variable + "=\"0\" is out of range; allowed: 1 to 1000000");
  }
  for (const std::string variable : {"HOROVOD_DISABLE_GROUP_FUSION", "HOROVOD_STALL_CHECK_DISABLE",
                                     "HOROVOD_TIMELINE_MARK_CYCLES", "HOROVOD_AUTOTUNE"}) {
    for (const char* value : {"", "2", "-1", "y", "ja", "truee", "0 "}) {
      CAPTURE(variable);
      CAPTURE(value);
      const std::string said = refused({{variable, value}});
      CHECK(said.starts_with("invalid_argument: " + variable + "=\"" + value + "\""));
      CHECK(said.ends_with("; allowed: 0, 1, false, true, no, yes, off, on"));
    }
  }
  for (const std::string variable : {"HOROVOD_STALL_CHECK_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"}) {
    for (const char* value : {"", "soon", "-1", "nan", "inf", "1e-9", "1e10", "60s"}) {
      CAPTURE(variable);
      CAPTURE(value);
      CHECK(refused({{variable, value}}).starts_with("invalid_argument: " + variable + "=\"" + value + "\""));
    }
  }
  CHECK(refused({{"HOROVOD_STALL_CHECK_TIME_SECONDS", "0"}}).starts_with("invalid_argument"));
  CHECK(refused({{"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "59"}}) ==
        "invalid_argument: HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=\"59\" is shorter than the time after which a stall is "
        "reported, 60 s (HOROVOD_STALL_CHECK_TIME_SECONDS); allowed: 0 (never) or at least that");
}

TEST_CASE("engine requests: good ones pass") {
  for (const operation kind : {operation::allreduce, operation::allgather, operation::broadcast,
                               operation::reduce_scatter, operation::alltoall, operation::barrier}) {
    CHECK(refused(good(kind)) == "nothing");
  }
  CHECK(refused(good(operation::allreduce, {})) == "nothing");
  CHECK(refused(good(operation::broadcast, {})) == "nothing");
  CHECK(refused(good(operation::reduce_scatter, {3})) == "nothing");
  request r = good(operation::alltoall, {5, 2});
  r.tensors[0].splits = {0, 4};  // may be fewer than there are
  CHECK(refused(r) == "nothing");
  r = good(operation::allgather, {0, 3});
  r.tensors[0].in = nullptr;
  CHECK(refused(r) == "nothing");
  r = good(operation::allreduce, {2}, dtype::boolean);
  r.op = reduce_op::max;
  CHECK(refused(r) == "nothing");
  r = good(operation::allreduce);
  r.op = reduce_op::adasum;
  CHECK(refused(r) == "nothing");
}

TEST_CASE("engine requests: what can never work") {
  const std::string on = "\" on rank 1 of 2: ";
  request r = good(operation::allreduce);
  r.name.clear();
  CHECK(refused(r) ==
        "invalid_argument: allreduce \"" + on + "the name is empty; every tensor needs one, the same on all ranks");
  r = good(operation::allreduce);
  r.tensors.clear();
  CHECK(refused(r) == "invalid_argument: allreduce \"w" + on + "no tensors are given");
  r = good(operation::barrier);
  r.tensors.resize(1);
  CHECK(refused(r) == "invalid_argument: barrier \"w" + on + "a barrier has no tensors, but 1 are given");
  for (const operation kind : {operation::split, operation::gather, operation::send, operation::reduce}) {
    CHECK(refused(good(kind)).find("is not an operation of the engine") != std::string::npos);
  }
  for (const int root : {-1, 2, 100}) {
    r = good(operation::broadcast);
    r.root = root;
    CHECK(refused(r) == "invalid_argument: broadcast \"w" + on + "root " + std::to_string(root) +
                            " is out of range; allowed: 0 to 1");
  }
  r = good(operation::allreduce);
  r.tensors[0].in = nullptr;
  CHECK(refused(r) == "invalid_argument: allreduce \"w" + on + "the tensor is null but has 4 elements");
  for (const operation kind : {operation::allgather, operation::reduce_scatter, operation::alltoall}) {
    CHECK(refused(good(kind, {})).ends_with("; reshape it to one element"));
  }
  CHECK(refused(good(operation::allreduce, {SIZE_MAX, 2})).ends_with("has more elements than can be addressed"));
  CHECK(refused(good(operation::allreduce, {std::size_t{1} << 62})).ends_with("more elements than can be addressed"));
  // None here, but other ranks, to which the rest of the shape goes, may have rows of it.
  CHECK(
      refused(good(operation::allgather, {0, std::size_t{1} << 62})).ends_with("more elements than can be addressed"));
  CHECK(refused(good(operation::allreduce, {4}, dtype::user)).find("is of type") != std::string::npos);
  CHECK(refused(good(operation::allreduce, {4}, static_cast<dtype>(200))).find("is of type") != std::string::npos);
  r = good(operation::allgather);
  r.tensors[0].splits = {2, 2};
  CHECK(refused(r) == "invalid_argument: allgather \"w" + on + "only alltoall takes splits");
  // In a group the tensor is named.
  r = good(operation::allreduce);
  r.tensors.push_back(r.tensors[0]);
  r.tensors[1].in = nullptr;
  CHECK(refused(r) == "invalid_argument: allreduce \"w" + on + "tensor 1 is null but has 4 elements");
}

TEST_CASE("engine requests: reductions") {
  request r = good(operation::allreduce, {4}, dtype::boolean);
  CHECK(refused(r).starts_with("invalid_argument: allreduce \"w\" on rank 1 of 2: the tensor: sum of bool"));
  r = good(operation::reduce_scatter);
  r.op = reduce_op::adasum;
  CHECK(refused(r).starts_with("unsupported: reduce_scatter \"w\""));
  r = good(operation::allreduce, {4}, dtype::int32);
  r.op = reduce_op::adasum;
  CHECK(refused(r).ends_with("adasum is for float16, bfloat16, float32 and float64, not for int32"));
  r = good(operation::allreduce);
  r.op = static_cast<reduce_op>(6);
  CHECK(refused(r).find("reduction 6 is unknown") != std::string::npos);
  // A NaN is unlike itself, so that no rank would ever agree with another.
  for (const double bad :
       {std::nan(""), std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()}) {
    r = good(operation::allreduce);
    r.prescale = bad;
    CHECK(refused(r).ends_with("must be finite numbers"));
    r.prescale = 1.0;
    r.postscale = bad;
    CHECK(refused(r).ends_with("must be finite numbers"));
    r.kind = operation::allgather;  // has none
    CHECK(refused(r) == "nothing");
  }
}

TEST_CASE("engine requests: alltoall") {
  const auto with = [](std::vector<std::size_t> splits, std::size_t rows) {
    request r = good(operation::alltoall, {rows});
    r.tensors[0].splits = std::move(splits);
    return refused(r);
  };
  CHECK(with({}, 4) == "nothing");
  CHECK(with({}, 3).find("has 3 rows, which 2 ranks cannot share equally") != std::string::npos);
  CHECK(with({4}, 4).ends_with("splits has 1 entries; allowed: one for each of the 2 ranks"));
  CHECK(with({1, 1, 1}, 4).ends_with("splits has 3 entries; allowed: one for each of the 2 ranks"));
  CHECK(with({3, 2}, 4).ends_with("splits add up to more than the 4 rows of the tensor"));
  CHECK(with({SIZE_MAX, 2}, 4).ends_with("splits add up to more than the 4 rows of the tensor"));
  CHECK(with({0, 0}, 0) == "nothing");
}

TEST_CASE("engine: output that overlaps the input") {
  const auto at = [](operation kind, std::size_t in, std::size_t out) {
    request r = good(kind, {8});  // 32 bytes
    r.tensors[0].in = memory + in;
    r.tensors[0].out = memory + out;
    return refused(r);
  };
  for (const operation kind : {operation::allreduce, operation::broadcast}) {
    CHECK(at(kind, 64, 64) == "nothing");
    CHECK(at(kind, 64, 32) == "nothing");
    CHECK(at(kind, 64, 96) == "nothing");
    CHECK(at(kind, 64, 36).ends_with("the tensor: input and output overlap; allowed: the same memory, or none of it"));
    CHECK(at(kind, 64, 92).ends_with("the tensor: input and output overlap; allowed: the same memory, or none of it"));
  }
  const operation half = operation::reduce_scatter;  // a rank of two gets 16 bytes
  CHECK(at(half, 64, 48) == "nothing");
  CHECK(at(half, 64, 96) == "nothing");
  for (const std::size_t out : {52U, 64U, 80U, 92U}) {
    CHECK(at(half, 64, out).ends_with("input and output overlap; allowed: memory apart from the input"));
  }
}

TEST_CASE("engine: memory for the result of an allgather or alltoall") {
  request r = good(operation::allgather, {8});  // 32 bytes, and this is rank 1 of 2
  r.tensors[0].in = memory + 64;
  const auto at = [&](std::size_t out) {
    r.tensors[0].out = memory + out;
    return refused(r);
  };
  CHECK(at(0) == "nothing");
  CHECK(at(32) == "nothing");  // in place
  CHECK(at(96) == "nothing");
  for (const std::size_t out : {4U, 36U, 64U, 92U}) {
    CHECK(at(out).ends_with(
        "input and output overlap; allowed: this rank's part of the output as the input, or memory apart from it"));
  }
  CHECK(at(96) == "nothing");
  r.tensors.push_back(r.tensors[0]);
  r.tensors[1].out = nullptr;
  CHECK(refused(r).ends_with(
      "memory for the result is passed for some tensors and not for others; allowed: for all or for none"));

  r = good(operation::alltoall, {8});
  r.tensors[0].in = memory + 64;
  r.tensors[0].out_rows = 4;  // 16 bytes
  CHECK(at(48) == "nothing");
  CHECK(at(96) == "nothing");
  for (const std::size_t out : {52U, 64U, 92U}) {
    CHECK(at(out).ends_with("input and output overlap; allowed: memory apart from the input"));
  }
}

TEST_CASE("engine: one shape on all ranks") {
  request r = good(operation::alltoall, {8});
  r.even = true;
  CHECK(refused(r) == "nothing");
  r.tensors[0].splits = {4, 4};
  CHECK(refused(r).ends_with("splits, and one shape on all ranks required; allowed: one of both"));
  r = good(operation::allreduce);
  r.even = true;
  CHECK(refused(r).ends_with("only allgather and alltoall can require one shape on all ranks"));
}

TEST_CASE("engine: memory of a device") {
  using hvd::memory_kind;
  request r = good(operation::allreduce);
  r.tensors[0].memory = {.kind = memory_kind::device, .device = 2};
  const auto on = [&](int device) { return complaint([&] { hvd::detail::validate(r, 1, 2, device); }); };
  const std::string who = "allreduce \"w\" on rank 1 of 2: ";
  CHECK(on(-1) == "unsupported: " + who +
                      "the tensor is on device 2, and this engine has none; copy it to the host, or make the engine "
                      "with a device");
  CHECK(on(1) ==
        "invalid_argument: " + who + "the tensor is on device 2; allowed: device 1, which the engine was made with");
  CHECK(on(2) == "nothing");
  r.tensors[0].in = nullptr;  // an address of the device, which may begin at 0
  CHECK(on(2) == "nothing");
  r.tensors.push_back(good(operation::allreduce).tensors[0]);
  CHECK(on(2) == "invalid_argument: " + who +
                     "tensor 1 is on the host, but tensor 0 on the device; allowed: one kind of memory in a group");
}

TEST_CASE("engine: members of a process set") {
  const auto members = [](const std::vector<int>& ranks) {
    return complaint([&] { hvd::detail::check_members(ranks, 0, 3); });
  };
  CHECK(members({2, 0}) == "nothing");
  CHECK(members({}) == "invalid_argument: add_process_set on rank 0 of 3: no ranks are given");
  CHECK(members({3}) == "invalid_argument: add_process_set on rank 0 of 3: there is no rank 3; allowed: 0 to 2");
  CHECK(members({-1}) == "invalid_argument: add_process_set on rank 0 of 3: there is no rank -1; allowed: 0 to 2");
  CHECK(members({1, 2, 1}) == "invalid_argument: add_process_set on rank 0 of 3: rank 1 is named twice");
}
