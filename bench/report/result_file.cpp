// bench/report/result_file.cpp: the file of -J, checked before and replaced after the run.
#include <bench/report/result_file.hpp>

#include <bench/options.hpp>

#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <unistd.h>

namespace hvd::bench {
namespace {

std::string draft_of(const std::string& path) { return path + ".part-" + std::to_string(::getpid()); }

}  // namespace

void check_result_file(const std::string& path) {
  std::error_code none;
  const std::filesystem::file_status is = std::filesystem::status(path, none);
  if (std::filesystem::is_directory(is)) throw usage_error("cannot write " + path + ": it is a folder");
  // It is replaced as a whole at the end; a device or a pipe must not be.
  if (std::filesystem::exists(is) && !std::filesystem::is_regular_file(is)) {
    throw usage_error("cannot write " + path + ": it is not a regular file");
  }
  if (std::filesystem::is_symlink(std::filesystem::symlink_status(path, none))) {
    throw usage_error("cannot write " + path + ": it is a link; name the file that it leads to");
  }
  const std::string draft = draft_of(path);
  const int fd = ::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  const int why = errno;
  if (fd >= 0) {
    ::close(fd);
    ::unlink(draft.c_str());
    if (::access(path.c_str(), F_OK) != 0 || ::access(path.c_str(), W_OK) == 0) return;
  }
  throw usage_error("cannot write " + path + ": " + std::strerror(fd < 0 ? why : errno));
}

void write_result_file(const std::string& path, const nlohmann::ordered_json& all) {
  const std::string draft = draft_of(path);
  std::ofstream file(draft);
  file << all.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
  file.close();
  if (!file || ::rename(draft.c_str(), path.c_str()) != 0) {
    const int why = errno;
    ::unlink(draft.c_str());
    throw std::runtime_error("cannot write " + path + ": " + std::strerror(why));
  }
}

}  // namespace hvd::bench
