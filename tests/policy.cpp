#include <hvd/launch.hpp>
#include <hvd/policy.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>

namespace policy_tests {

namespace {

// Sets a variable, or removes it, for as long as it exists.
class variable {
 public:
  variable(const char* name, const char* value) : name_(name) {
    if (const char* const was = std::getenv(name)) before_ = was, set_ = true;
    value != nullptr ? ::setenv(name, value, 1) : ::unsetenv(name);
  }
  variable(const variable&) = delete;
  variable& operator=(const variable&) = delete;
  ~variable() { set_ ? ::setenv(name_, before_.c_str(), 1) : ::unsetenv(name_); }

 private:
  const char* name_;
  std::string before_;
  bool set_ = false;
};

using variables = std::map<std::string, std::string>;
using doctest::Contains;

hvd::sharing_options read(const variables& set) {
  return hvd::sharing_options::from_environment([&](const char* name) -> std::optional<std::string> {
    const auto found = set.find(name);
    return found == set.end() ? std::nullopt : std::optional(found->second);
  });
}

// The text of the invalid_argument for these variables.
doctest::String complaint_of(const variables& set) {
  try {
    static_cast<void>(read(set));
  } catch (const hvd::error& e) {
    return e.kind() == hvd::error_kind::invalid_argument ? e.what() : "another kind of error";
  }
  return "accepted";
}

TEST_CASE("the defaults") {
  const variable a("HVD_TIMEOUT", "2.5"), b("HVD_SHM_DIR", "here");  // read by from_environment alone
  const hvd::sharing_options o;
  CHECK(o.memory.directory == "/dev/shm");
  CHECK(o.memory.staging_bytes == std::size_t{1} << 20);
  CHECK(o.failure.timeout.count() == 300.0);
  CHECK(o.failure.start_timeout.count() == 30.0);
  CHECK(o.failure.check == (HVD_CHECK != 0));
  CHECK(o.failure.look_every <= std::chrono::milliseconds(10));  // a lost peer is a matter of a second
  CHECK_FALSE(o.lines.known());
  CHECK(o.waiting.sleep <= std::chrono::milliseconds(1));
}

TEST_CASE("from_environment reads this process's environment, and so do functions that get no options") {
  const variable a("HVD_TIMEOUT", "2.5"), b("HOROVOD_START_TIMEOUT", "7"), c("HVD_CHECK", "yes"),
      d("HVD_SHM_DIR", "/tmp"), e("HVD_LINE_COSTS", "transfer_ps=3,rewrite_ps=2,touched_ps=1");
  const auto o = hvd::sharing_options::from_environment();
  CHECK(o.failure.timeout.count() == 2.5);
  CHECK(o.failure.start_timeout.count() == 7.0);
  CHECK(o.failure.check);
  CHECK(o.memory.directory == "/tmp");
  CHECK(o.lines == hvd::line_costs{3, 2, 1});
  hvd::thread_run(1, [](hvd::ThreadTransport& comm) { CHECK(comm.timeout().count() == 2.5); });
  const variable given("HVD_TIMEOUT", "soon");
  CHECK_THROWS_WITH(hvd::thread_run(1, [](hvd::ThreadTransport&) {}), Contains("HVD_TIMEOUT=\"soon\""));
  hvd::thread_run(1, [](hvd::ThreadTransport& comm) { CHECK(comm.timeout().count() == 300); }, {});
}

TEST_CASE("timeouts are seconds, whole or not") {
  CHECK(read({{"HOROVOD_START_TIMEOUT", "600"}}).failure.start_timeout == std::chrono::seconds(600));
  CHECK(read({{"HVD_TIMEOUT", "0.5"}}).failure.timeout == std::chrono::milliseconds(500));
  CHECK(read({{"HVD_TIMEOUT", "1e3"}}).failure.timeout == std::chrono::seconds(1000));
  CHECK(read({{"HVD_TIMEOUT", "0"}}).failure.timeout == std::chrono::seconds(0));
  CHECK(read({{"HVD_TIMEOUT", "0.0"}}).failure.timeout == std::chrono::seconds(0));
  CHECK(read({{"HVD_TIMEOUT", "1000000000"}}).failure.timeout == std::chrono::seconds(1000000000));
  CHECK(complaint_of({{"HVD_TIMEOUT", "soon"}}) == "hvd: HVD_TIMEOUT=\"soon\" is not a number of seconds; "
                                                   "allowed: 0 (no limit) or 0.001 to 1000000000 seconds");
  CHECK(complaint_of({{"HOROVOD_START_TIMEOUT", "0"}}) ==
        "hvd: HOROVOD_START_TIMEOUT=\"0\" is out of range; allowed: 0.001 to 1000000000 seconds");
  for (const char* garbage : {"5s", " 5", "5 ", "inf", "-inf", "nan", "NaN", "infinity", "1e", ".", "0x10"}) {
    CAPTURE(garbage);
    CHECK(complaint_of({{"HVD_TIMEOUT", garbage}}) == Contains("is not a number of seconds"));
    CHECK(complaint_of({{"HOROVOD_START_TIMEOUT", garbage}}) == Contains("is not a number of seconds"));
  }
  for (const char* outside : {"-1", "-0.5", "1e10", "1e999", "-1e999", "1e-9", "1e-999"}) {
    CAPTURE(outside);
    CHECK(complaint_of({{"HVD_TIMEOUT", outside}}) == Contains("is out of range"));
  }
  CHECK(complaint_of({{"HVD_TIMEOUT", ""}}) == Contains("HVD_TIMEOUT=\"\" is empty"));
}

TEST_CASE("truth values") {
  for (const char* yes : {"1", "true", "TRUE", "True", "yes", "on", "On"})
    CHECK(read({{"HVD_CHECK", yes}}).failure.check);
  for (const char* no : {"0", "false", "False", "no", "off", "OFF"})
    CHECK_FALSE(read({{"HVD_CHECK", no}}).failure.check);
  for (const char* garbage : {"2", "01", "t", "enable", " 1", "-1"})
    CHECK(complaint_of({{"HVD_CHECK", garbage}}) ==
          Contains("is not a truth value; allowed: 0, 1, false, true, no, yes, off, on"));
  CHECK(complaint_of({{"HVD_CHECK", ""}}) == Contains("HVD_CHECK=\"\" is empty; allowed: 0, 1"));
}

TEST_CASE("the folder of segments is an absolute path") {
  CHECK(read({{"HVD_SHM_DIR", "/run/hvd"}}).memory.directory == "/run/hvd");
  CHECK(complaint_of({{"HVD_SHM_DIR", "shm"}}) == Contains("HVD_SHM_DIR=\"shm\" is not absolute"));
  CHECK(complaint_of({{"HVD_SHM_DIR", ""}}) == Contains("HVD_SHM_DIR=\"\" is empty; allowed: an absolute path"));
}

}  // namespace

}  // namespace policy_tests
