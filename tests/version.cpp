// tests/version.cpp: one version, in one namespace.
#include <doctest/doctest.h>

#include <hvd/hvd.hpp>

#include <string>
#include <typeinfo>

TEST_CASE("the text follows the macros") {
  CHECK(std::string(hvd::version) == std::to_string(HVD_VERSION_MAJOR) + "." + std::to_string(HVD_VERSION_MINOR) + "." +
                                         std::to_string(HVD_VERSION_PATCH));
}

TEST_CASE("symbols carry the version, so that two versions in one process do not meet") {
  const std::string wanted = "v" + std::to_string(HVD_VERSION_MAJOR) + "_" + std::to_string(HVD_VERSION_MINOR) + "_";
  CHECK(std::string(typeid(hvd::error).name()).find(wanted) != std::string::npos);
}
