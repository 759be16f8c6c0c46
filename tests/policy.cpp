#include <hvd/policy.hpp>

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

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

template <class Policy>
std::string refused() {
  try {
    (void)Policy{};
  } catch (const hvd::error& e) {
    return e.kind() == hvd::error_kind::invalid_argument ? e.what() : "another kind";
  }
  return "accepted";
}

TEST_CASE("the defaults") {
  const variable a("HVD_TIMEOUT", nullptr), b("HOROVOD_START_TIMEOUT", nullptr), c("HVD_CHECK", nullptr),
      d("HVD_SHM_DIR", nullptr);
  const hvd::sharing_options o;
  CHECK(o.memory.directory == "/dev/shm");
  CHECK(o.memory.staging_bytes == std::size_t{1} << 20);
  CHECK(o.failure.timeout.count() == 300.0);
  CHECK(o.failure.start_timeout.count() == 30.0);
  CHECK(o.failure.check == (HVD_CHECK != 0));
  CHECK(o.failure.look_every <= std::chrono::milliseconds(10));  // a lost peer is a matter of a second
  CHECK(o.waiting.sleep <= std::chrono::milliseconds(1));
}

TEST_CASE("variables set the defaults") {
  const variable a("HVD_TIMEOUT", "2.5"), b("HOROVOD_START_TIMEOUT", "7"), c("HVD_CHECK", "yes"),
      d("HVD_SHM_DIR", "/tmp");
  const hvd::sharing_options o;
  CHECK(o.failure.timeout.count() == 2.5);
  CHECK(o.failure.start_timeout.count() == 7.0);
  CHECK(o.failure.check);
  CHECK(o.memory.directory == "/tmp");
  const variable none("HVD_TIMEOUT", "0");
  CHECK(hvd::failure_policy{}.timeout.count() == 0.0);  // no limit
}

TEST_CASE("garbage is refused by name, value and what is allowed; a given value needs no variable") {
  const variable a("HVD_TIMEOUT", "ten"), b("HVD_SHM_DIR", "here");
  const std::string timeout = refused<hvd::failure_policy>(), directory = refused<hvd::memory_policy>();
  CHECK(timeout.find("HVD_TIMEOUT=\"ten\"") != std::string::npos);
  CHECK(timeout.find("allowed: 0 (no limit) or ") != std::string::npos);
  CHECK(directory.find("HVD_SHM_DIR=\"here\"") != std::string::npos);
  CHECK(directory.find("absolute path") != std::string::npos);
  const hvd::memory_policy given{.directory = "/dev/shm"};
  CHECK(given.directory == "/dev/shm");
  const hvd::failure_policy patient{.timeout = std::chrono::seconds(1)};
  CHECK(patient.timeout.count() == 1.0);
}

}  // namespace
