// tests/config.cpp: what the environment may say, and the sentence for what it may not.
#include <hvd/config.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace {

using variables = std::map<std::string, std::string>;

hvd::config read(const variables& set) {
  return hvd::config::from_environment([&](const char* name) -> std::optional<std::string> {
    const auto found = set.find(name);
    return found == set.end() ? std::nullopt : std::optional(found->second);
  });
}

// The sentence of the invalid_argument that f throws; another kind, or none, is no such sentence.
template <class F>
doctest::String complaint(F&& f) {
  try {
    static_cast<void>(std::forward<F>(f)());
  } catch (const hvd::error& e) {
    return e.kind() == hvd::error_kind::invalid_argument ? e.what() : "another kind of error";
  }
  return "accepted";
}

doctest::String complaint_of(const variables& set) {
  return complaint([&] { return read(set); });
}

doctest::Contains has(const char* text) { return doctest::Contains(text); }

variables placed(const char* rank, const char* size) { return {{"HOROVOD_RANK", rank}, {"HOROVOD_SIZE", size}}; }

variables placed(const char* rank, const char* size, const char* local_rank, const char* local_size) {
  auto set = placed(rank, size);
  set["HOROVOD_LOCAL_RANK"] = local_rank;
  set["HOROVOD_LOCAL_SIZE"] = local_size;
  return set;
}

variables placed(const char* rank, const char* size, const char* local_rank, const char* local_size,
                 const char* cross_rank, const char* cross_size) {
  auto set = placed(rank, size, local_rank, local_size);
  set["HOROVOD_CROSS_RANK"] = cross_rank;
  set["HOROVOD_CROSS_SIZE"] = cross_size;
  return set;
}

struct six {
  int rank, size, local_rank, local_size, cross_rank, cross_size;
  bool operator==(const six&) const = default;
};

six place(const variables& set) {
  const hvd::config c = read(set);
  return {c.rank, c.size, c.local_rank, c.local_size, c.cross_rank, c.cross_size};
}

}  // namespace

TEST_CASE("config: an empty environment is one process alone") {
  const hvd::config c = read({});
  CHECK(place({}) == six{0, 1, 0, 1, 0, 1});
  CHECK(c.job.empty());
}

TEST_CASE("config: all that a launcher sets is taken") {
  CHECK(place(placed("5", "8", "1", "4", "1", "2")) == six{5, 8, 1, 4, 1, 2});
  // Unequal hosts: 3 ranks on one, 1 on the other.
  CHECK(place(placed("2", "4", "2", "3", "0", "1")) == six{2, 4, 2, 3, 0, 1});
  CHECK(place(placed("3", "4", "0", "1", "1", "2")) == six{3, 4, 0, 1, 1, 2});
  CHECK(place(placed("0", "2147483647")) == six{0, INT_MAX, 0, INT_MAX, 0, 1});
}

TEST_CASE("config: what is not set follows from what is") {
  CHECK(place(placed("2", "4")) == six{2, 4, 2, 4, 0, 1});
  CHECK(place(placed("2", "4", "2", "4")) == six{2, 4, 2, 4, 0, 1});
  CHECK(place(placed("2", "4", "1", "4")) == six{2, 4, 1, 4, 0, 1});  // local ranks in another order
  CHECK(place(placed("5", "8", "1", "4")) == six{5, 8, 1, 4, 1, 2});
  CHECK(place(placed("3", "4", "0", "1")) == six{3, 4, 0, 1, 3, 4});
  auto set = placed("1", "2");
  set["HOROVOD_CROSS_RANK"] = "0";
  set["HOROVOD_CROSS_SIZE"] = "1";
  CHECK(place(set) == six{1, 2, 1, 2, 0, 1});
}

TEST_CASE("config: a place that does not follow must be given") {
  const auto not_consecutive = complaint_of(placed("1", "4", "0", "2"));
  CHECK(not_consecutive == has("HOROVOD_CROSS_RANK and HOROVOD_CROSS_SIZE are not set"));
  CHECK(not_consecutive == has("rank 1 of 4, local rank 0 of 2"));
  CHECK(complaint_of(placed("0", "4", "0", "3")) == has("HOROVOD_CROSS_SIZE are not set"));
  auto cross_only = placed("1", "4");
  cross_only["HOROVOD_CROSS_RANK"] = "1";
  cross_only["HOROVOD_CROSS_SIZE"] = "2";
  CHECK(complaint_of(cross_only) ==
        has("HOROVOD_CROSS_SIZE=\"2\" is out of range; allowed: 1 while HOROVOD_LOCAL_SIZE is not set"));
}

TEST_CASE("config: half a pair is refused") {
  CHECK(complaint_of({{"HOROVOD_RANK", "1"}}) ==
        "hvd: HOROVOD_RANK=\"1\" is set but HOROVOD_SIZE is not; allowed: both or neither");
  CHECK(complaint_of({{"HOROVOD_SIZE", "2"}}) == has("HOROVOD_SIZE=\"2\" is set but HOROVOD_RANK is not"));
  auto set = placed("0", "2");
  set["HOROVOD_LOCAL_RANK"] = "0";
  CHECK(complaint_of(set) == has("HOROVOD_LOCAL_RANK=\"0\" is set but HOROVOD_LOCAL_SIZE is not"));
  set = placed("0", "2", "0", "1");
  set["HOROVOD_CROSS_SIZE"] = "2";
  CHECK(complaint_of(set) == has("HOROVOD_CROSS_SIZE=\"2\" is set but HOROVOD_CROSS_RANK is not"));
}

TEST_CASE("config: garbage in a rank is named, with what is allowed") {
  CHECK(complaint_of(placed("abc", "4")) ==
        "hvd: HOROVOD_RANK=\"abc\" is not a whole number; allowed: 0 to HOROVOD_SIZE-1 (here 0 to 3)");
  for (const char* garbage : {"1x", "x1", " 1", "1 ", "1.0", "+1", "1e0", "0x1", "--1", "-", "1\n", "\xff"}) {
    CAPTURE(garbage);
    CHECK(complaint_of(placed(garbage, "4")) == has("is not a whole number; allowed: 0 to HOROVOD_SIZE-1"));
  }
  CHECK(complaint_of(placed("", "4")) == has("HOROVOD_RANK=\"\" is empty; allowed: 0 to HOROVOD_SIZE-1"));
  CHECK(complaint_of(placed("1", "")) == has("HOROVOD_SIZE=\"\" is empty; allowed: 1 to 2147483647"));
  CHECK(complaint_of(placed("1", "four")) == has("HOROVOD_SIZE=\"four\" is not a whole number"));
}

TEST_CASE("config: a rank outside its size is named, with the size") {
  CHECK(complaint_of(placed("4", "4")) ==
        "hvd: HOROVOD_RANK=\"4\" is out of range; allowed: 0 to HOROVOD_SIZE-1 (here 0 to 3)");
  for (const char* outside : {"-1", "-0000001", "99999999999999999999999", "-99999999999999999999999"})
    CHECK(complaint_of(placed(outside, "4")) == has("is out of range; allowed: 0 to HOROVOD_SIZE-1"));
  for (const char* outside : {"0", "-1", "2147483648"})
    CHECK(complaint_of(placed("0", outside)) == has("is out of range; allowed: 1 to 2147483647"));
  CHECK(complaint_of(placed("0", "2", "2", "2")) == has("HOROVOD_LOCAL_RANK=\"2\" is out of range"));
  CHECK(complaint_of(placed("0", "2", "0", "3")) == has("allowed: 1 to HOROVOD_SIZE (here 1 to 2)"));
  CHECK(complaint_of(placed("0", "4", "0", "2", "0", "4")) ==
        has("HOROVOD_CROSS_SIZE=\"4\" is out of range; allowed: 1 to HOROVOD_SIZE-HOROVOD_LOCAL_SIZE+1 "
            "(here 1 to 3)"));
  CHECK(complaint_of(placed("0", "4", "0", "2", "2", "2")) ==
        has("HOROVOD_CROSS_RANK=\"2\" is out of range; allowed: 0 to HOROVOD_CROSS_SIZE-1 (here 0 to 1)"));
  // A local place without a job is a place in a job of one.
  CHECK(complaint_of({{"HOROVOD_LOCAL_RANK", "0"}, {"HOROVOD_LOCAL_SIZE", "2"}}) ==
        has("HOROVOD_LOCAL_SIZE=\"2\" is out of range; allowed: 1 to HOROVOD_SIZE (here 1 to 1)"));
}

TEST_CASE("config: a job's name can be part of a file's name") {
  CHECK(read({{"HVD_JOB", "digits-3.b_1"}}).job == "digits-3.b_1");
  CHECK(read({{"HVD_JOB", std::string(128, 'j')}}).job.size() == 128);
  for (const char* bad : {"a/b", "../x", "a b", "a\tb", "\xc3\xa4", "a:b"})
    CHECK(complaint_of({{"HVD_JOB", bad}}) == has("is not a valid name of a job; allowed: 1 to 128 letters, digits"));
  CHECK(complaint_of({{"HVD_JOB", ""}}) == has("HVD_JOB=\"\" is empty"));
  CHECK(complaint_of({{"HVD_JOB", std::string(129, 'j')}}) == has("is not a valid name of a job"));
}

TEST_CASE("config: what tells a launch is what a launcher of just these ranks says") {
  const auto launch = [](std::map<std::string, std::string> more) {
    more.insert({{"HOROVOD_RANK", "1"}, {"HOROVOD_SIZE", "4"}});
    return hvd::config::from_environment([&](const char* name) -> std::optional<std::string> {
             const auto found = more.find(name);
             return found == more.end() ? std::nullopt : std::optional<std::string>(found->second);
           })
        .launch;
  };
  CHECK(launch({}).empty());
  CHECK(launch({{"HVD_LAUNCH", "a-1"}}) == "a-1");
  CHECK_THROWS_AS(launch({{"HVD_LAUNCH", "a/1"}}), hvd::error);
  const std::map<std::string, std::string> torch{{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"TORCHELASTIC_RUN_ID", "x"}};
  CHECK(launch(torch).size() == 16);
  CHECK(launch(torch) == launch(torch));
  auto other = torch;
  other["TORCHELASTIC_RUN_ID"] = "y";
  CHECK(launch(other) != launch(torch));
  other["WORLD_SIZE"] = "5";  // a job within a job
  CHECK(launch(other).empty());
  CHECK(launch({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"PMIX_NAMESPACE", "7"}}).size() == 16);
  CHECK(launch({{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_STEP_ID", "0"}}).size() == 16);
  CHECK(launch({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}}).empty());  // no ancestor of this test starts MPI programs
}

TEST_CASE("config: without HOROVOD_RANK the place is what a launcher says") {
  const auto told = [](const variables& set) {
    const hvd::config c = read(set);
    return std::string(c.launcher) + " " + c.job + " " + std::to_string(c.launch.size());
  };
  CHECK(told({}) == "none  0");

  const variables torch{
      {"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}, {"TORCHELASTIC_RUN_ID", "x"}};
  CHECK(place(torch) == six{3, 4, 1, 2, 1, 2});
  CHECK(told(torch) == "TORCHRUN torchrun 16");
  variables below_slurm = torch;  // srun starts one torchrun on each host
  below_slurm.insert({{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_STEP_ID", "0"}});
  CHECK(place(below_slurm) == six{3, 4, 1, 2, 1, 2});
  CHECK(place({{"RANK", "1"}, {"WORLD_SIZE", "2"}}) == six{1, 2, 1, 2, 0, 1});  // set by hand
  CHECK(told({{"RANK", "1"}, {"WORLD_SIZE", "2"}}) == "RANK rank 16");
  CHECK(told({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"HVD_JOB", "j"}, {"HVD_LAUNCH", "17"}}) == "RANK j 2");

  const variables mpich{{"PMI_RANK", "3"}, {"PMI_SIZE", "5"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
  CHECK(place(mpich) == six{3, 5, 1, 2, 1, 3});  // hosts may have different numbers of ranks
  CHECK(told(mpich) == "PMI pmi 16");
  CHECK(told(mpich) == told(mpich));
  CHECK(read(mpich).launch == read({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}).launch);  // the process that started both

  const variables open_mpi{{"OMPI_COMM_WORLD_RANK", "0"},
                           {"OMPI_COMM_WORLD_SIZE", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                           {"PMIX_NAMESPACE", "1@2"}};
  CHECK(place(open_mpi) == six{0, 2, 0, 2, 0, 1});
  CHECK(told(open_mpi) == "OMPI ompi 16");

  CHECK(place({{"MV2_COMM_WORLD_RANK", "3"},
               {"MV2_COMM_WORLD_SIZE", "4"},
               {"MV2_COMM_WORLD_LOCAL_RANK", "1"},
               {"MV2_COMM_WORLD_LOCAL_SIZE", "2"}}) == six{3, 4, 1, 2, 1, 2});
  CHECK(told({{"MV2_COMM_WORLD_RANK", "0"}, {"MV2_COMM_WORLD_SIZE", "2"}}) == "MVAPICH mvapich 16");
  const variables jsrun{{"JSM_NAMESPACE_RANK", "3"},
                        {"JSM_NAMESPACE_SIZE", "4"},
                        {"JSM_NAMESPACE_LOCAL_RANK", "1"},
                        {"JSM_NAMESPACE_LOCAL_SIZE", "2"},
                        {"PMIX_NAMESPACE", "1"}};
  CHECK(place(jsrun) == six{3, 4, 1, 2, 1, 2});
  CHECK(told(jsrun) == "JSM jsm 16");

  // hvdrun sets torchrun's variables too; the launch is its own.
  variables of_hvdrun = torch;
  of_hvdrun.insert({{"HOROVOD_RANK", "3"}, {"HOROVOD_SIZE", "4"}, {"HVD_JOB", "j"}, {"HVD_LAUNCH", "17"}});
  CHECK(told(of_hvdrun) == "HOROVOD j 2");
  CHECK(read(of_hvdrun).launch == "17");

  // hvdrun's variables count before all others.
  variables both = mpich;
  both.insert({{"HOROVOD_RANK", "0"}, {"HOROVOD_SIZE", "1"}});
  CHECK(place(both) == six{0, 1, 0, 1, 0, 1});

  // Without what would identify the launch it is that of the parent; but a name that somebody gives the job is kept.
  CHECK(told({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "4"}}) == "OMPI ompi 16");
  CHECK(told({{"RANK", "1"}, {"WORLD_SIZE", "2"}}) == "RANK rank 16");
  CHECK(told({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"HVD_JOB", "j"}}) == "RANK j 0");
  CHECK(complaint_of({{"RANK", "1"}}) == has("RANK=\"1\" is set but WORLD_SIZE is not; allowed: both or neither"));
  CHECK(complaint_of({{"PMI_SIZE", "2"}}) == has("PMI_SIZE=\"2\" is set but PMI_RANK is not"));
  CHECK(complaint_of({{"OMPI_COMM_WORLD_RANK", "0"}}) == has("OMPI_COMM_WORLD_SIZE is not"));
  CHECK(complaint_of({{"PMI_RANK", "2"}, {"PMI_SIZE", "2"}}) == has("PMI_RANK=\"2\" is out of range"));
  CHECK(complaint_of({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "3"}}) ==
        has("MPI_LOCALNRANKS=\"3\" is out of range; allowed: 1 to PMI_SIZE (here 1 to 2)"));
}

TEST_CASE("config: srun lists the ranks of all hosts") {
  const auto at = [](const char* rank, const char* size, const char* node, const char* local, const char* list) {
    variables set{{"SLURM_STEP_ID", "0"},
                  {"SLURM_PROCID", rank},
                  {"SLURM_STEP_NUM_TASKS", size},
                  {"SLURM_NODEID", node},
                  {"SLURM_LOCALID", local}};
    if (list != nullptr) set["SLURM_STEP_TASKS_PER_NODE"] = list;
    return set;
  };
  CHECK(place(at("1", "2", "0", "1", nullptr)) == six{1, 2, 1, 2, 0, 1});
  CHECK(place(at("4", "5", "2", "0", "2(x2),1")) == six{4, 5, 0, 1, 4, 5});
  CHECK(place(at("3", "4", "1", "1", "2(x2)")) == six{3, 4, 1, 2, 1, 2});
  CHECK(place(at("1999999", "2000000", "999999", "1", "2(x999999),2")) == six{1999999, 2000000, 1, 2, 999999, 1000000});
  variables own_pmi = at("3", "4", "1", "1", "2(x2)");
  own_pmi.insert({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}});  // srun --mpi=pmi2, which says nothing of hosts
  CHECK(place(own_pmi) == six{3, 4, 1, 2, 1, 2});
  CHECK(place({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}) == six{0, 1, 0, 1, 0, 1});  // the script of a batch job

  for (const char* wrong : {"", "x", "2(x3)", "2,2,", "1(x4", "-1,5", "2(x2))", "2 (x2)", "4000000000(x1)", "0(x4),4x",
                            "1(x999999999),1(x999999999)", "99999999999"}) {
    CAPTURE(wrong);
    CHECK(complaint_of(at("3", "4", "1", "1", wrong)) == has("SLURM_STEP_TASKS_PER_NODE"));
  }
  CHECK(complaint_of(at("3", "4", "2", "1", "2(x2)")) == has("SLURM_NODEID=\"2\" is out of range"));
  CHECK(complaint_of(at("3", "4", "1", "2", "2(x2)")) == has("SLURM_LOCALID=\"2\" is out of range"));
}

TEST_CASE("config: a message shows any value on one short line") {
  CHECK(complaint_of(placed("1\n\x1b[2J", "4")) == has("HOROVOD_RANK=\"1\\x0a\\x1b[2J\" is not"));
  const doctest::String message = complaint_of(placed(std::string(100'000, '7').c_str(), "4"));
  CHECK(message.size() < 250);
  CHECK(message == has("7...7"));
}

TEST_CASE("config: a process that an unknown launcher has started as one of several is warned of") {
  const auto warning = [](const variables& set) {
    const std::string text =
        hvd::detail::lone_rank_warning(read(set), [&](const char* name) -> std::optional<std::string> {
          const auto found = set.find(name);
          return found == set.end() ? std::nullopt : std::optional<std::string>(found->second);
        });
    return doctest::String(text.c_str());
  };
  CHECK(warning({{"PMIX_RANK", "1"}}) == has("PMIX_RANK=\"1\": an unknown launcher"));
  CHECK(warning({{"ALPS_APP_PE", "3"}}) == has("start them with hvdrun"));
  CHECK(warning({{"FLUX_TASK_RANK", "0"}, {"FLUX_JOB_SIZE", "2"}}) == has("FLUX_JOB_SIZE=\"2\""));
  CHECK(warning({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}}) == has("SLURM_PROCID=\"1\""));
  CHECK(warning({}) == "");
  CHECK(warning({{"PMIX_RANK", "0"}, {"ALPS_APP_PE", "0"}}) == "");
  CHECK(warning({{"FLUX_TASK_RANK", "0"}, {"FLUX_JOB_SIZE", "1"}}) == "");
  CHECK(warning({{"SLURM_JOB_ID", "5"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}) == "");  // a batch script
  CHECK(warning({{"PMIX_RANK", "1"}, {"HOROVOD_RANK", "0"}, {"HOROVOD_SIZE", "1"}}) == "");
  CHECK(warning({{"PMIX_RANK", "1"}, {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}) == "");
}

TEST_CASE("config: parse_integer holds the range of every type to its ends") {
  CHECK(hvd::parse_integer<std::int8_t>("X", "-128", INT8_MIN, INT8_MAX) == -128);
  CHECK(hvd::parse_integer<std::uint64_t>("X", "18446744073709551615", 0, UINT64_MAX) == UINT64_MAX);
  CHECK(hvd::parse_integer("X", "-9223372036854775808", INT64_MIN, INT64_MAX) == INT64_MIN);
  CHECK(complaint([] { return hvd::parse_integer<std::uint64_t>("X", "18446744073709551616", 0, UINT64_MAX); }) ==
        "hvd: X=\"18446744073709551616\" is out of range; allowed: 0 to 18446744073709551615");
  CHECK(complaint([] { return hvd::parse_integer<unsigned>("X", "-1", 0, 9); }) ==
        "hvd: X=\"-1\" is out of range; allowed: 0 to 9");
  CHECK(complaint([] { return hvd::parse_integer<unsigned>("X", "-", 0, 9); }) == has("is not a whole number"));
}
