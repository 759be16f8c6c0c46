// digits/checkpoint.cpp: header, weights and velocity, each followed by its CRC-32; all numbers
// little-endian.
#include "checkpoint.hpp"

#include "checksum.hpp"
#include "file.hpp"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include <unistd.h>

namespace digits {
namespace {

using std::to_string;

static_assert(std::endian::native == std::endian::little, "numbers are copied as they lie in memory");

using magic_text = std::array<char, 8>;
using shape_numbers = std::array<std::uint32_t, 3>;
constexpr magic_text magic = {'h', 'v', 'd', 'd', 'i', 'g', 'i', 't'};
constexpr std::uint32_t version = 1;

struct header {
  magic_text magic = digits::magic;
  std::uint32_t version = digits::version;
  shape_numbers shape{};
  std::uint64_t seed = 0;
  std::uint64_t epochs = 0;
};
static_assert(sizeof(header) == 40, "padding would be written too");

shape_numbers shape_of(const mlp& model) {
  return {static_cast<std::uint32_t>(model.inputs), static_cast<std::uint32_t>(model.hidden),
          static_cast<std::uint32_t>(model.outputs)};
}

std::string text(const shape_numbers& shape) {
  return to_string(shape[0]) + "-" + to_string(shape[1]) + "-" + to_string(shape[2]);
}

// A file that exists under its final name only once it is complete, and not at all if something fails before.
class output_file {
 public:
  explicit output_file(const std::string& path)
      : path_(path), temporary_(path + ".tmp"), file_(std::fopen(temporary_.c_str(), "wb")) {
    if (file_ == nullptr) fail_system(temporary_, "cannot be opened for writing");
  }
  output_file(const output_file&) = delete;
  output_file& operator=(const output_file&) = delete;
  ~output_file() {
    if (file_ == nullptr) return;
    std::fclose(file_);
    std::remove(temporary_.c_str());
  }

  void write(std::span<const std::byte> part) {
    const std::uint32_t crc = crc32(part);
    if (std::fwrite(part.data(), 1, part.size(), file_) != part.size() ||
        std::fwrite(&crc, sizeof crc, 1, file_) != 1) {
      fail_system(temporary_, "cannot be written");
    }
  }

  void finish() {
    if (std::fflush(file_) != 0 || ::fsync(::fileno(file_)) != 0) fail_system(temporary_, "cannot be written");
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail_system(path_, "cannot be replaced");
    std::fclose(std::exchange(file_, nullptr));
  }

 private:
  std::string path_;
  std::string temporary_;
  std::FILE* file_;
};

class input_file {
 public:
  explicit input_file(const std::string& path) : path_(path), bytes_(contents(path)) {}

  [[nodiscard]] std::string_view bytes() const noexcept { return bytes_; }

  /// Fills `part` with the next bytes of the file and checks the CRC-32 behind them.
  void read(std::span<std::byte> part, const std::string& name) {
    const std::size_t end = at_ + part.size() + sizeof(std::uint32_t);
    const std::string where = name + " in bytes " + to_string(at_) + " to " + to_string(end - 1);
    if (bytes_.size() < end) fail(bytes_.size(), "the file ends within its " + where);
    std::uint32_t crc = 0;
    std::memcpy(part.data(), bytes_.data() + at_, part.size());
    std::memcpy(&crc, bytes_.data() + at_ + part.size(), sizeof crc);
    if (const std::uint32_t found = crc32(part); found != crc) {
      fail(at_, "the CRC-32 of the " + where + " is " + hex(found) + ", but " + hex(crc) +
                    " is written behind: some bit has been altered");
    }
    at_ = end;
  }

  void finish() const {
    if (at_ != bytes_.size()) fail(at_, "the file goes on to byte " + to_string(bytes_.size()) + ", expected its end");
  }

  [[noreturn]] void fail(std::size_t byte, const std::string& what) const {
    fail_at(path_, "byte " + to_string(byte), what);
  }

 private:
  std::string path_;
  std::string bytes_;
  std::size_t at_ = 0;
};

std::span<std::byte> bytes_of(Eigen::VectorXf& values) {
  return std::as_writable_bytes(std::span(values.data(), static_cast<std::size_t>(values.size())));
}

std::span<const std::byte> bytes_of(const Eigen::VectorXf& values) {
  return std::as_bytes(std::span(values.data(), static_cast<std::size_t>(values.size())));
}

}  // namespace

void write_checkpoint(const std::string& path, const mlp& model, const training_state& state) {
  header head;
  head.shape = shape_of(model);
  head.seed = state.seed;
  head.epochs = state.epochs;
  output_file file(path);
  file.write(std::as_bytes(std::span(&head, 1)));
  file.write(bytes_of(state.weights));
  file.write(bytes_of(state.velocity));
  file.finish();
}

training_state read_checkpoint(const std::string& path, const mlp& model) {
  input_file file(path);
  if (!file.bytes().starts_with(std::string_view(magic.data(), magic.size()))) {
    file.fail(0, "this is not a checkpoint of train_digits, which begins with 'hvddigit'");
  }
  header head;
  file.read(std::as_writable_bytes(std::span(&head, 1)), "header");
  if (head.version != version) {
    file.fail(offsetof(header, version),
              "the version is " + to_string(head.version) + ", expected " + to_string(version));
  }
  if (head.shape != shape_of(model)) {
    file.fail(offsetof(header, shape),
              "the model has shape " + text(head.shape) + ", but the data needs " + text(shape_of(model)));
  }
  training_state state{head.seed, head.epochs, Eigen::VectorXf(model.size()), Eigen::VectorXf(model.size())};
  file.read(bytes_of(state.weights), "weights");
  file.read(bytes_of(state.velocity), "velocity");
  file.finish();
  return state;
}

}  // namespace digits
