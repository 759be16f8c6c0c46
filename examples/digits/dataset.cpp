// digits/dataset.cpp: reads the data files and says where they are wrong.
#include "dataset.hpp"

#include "checksum.hpp"
#include "file.hpp"
#include "random.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iterator>
#include <string_view>
#include <system_error>
#include <utility>

namespace digits {
namespace {

using std::to_string;

// Text of the file for a message: short, and without control characters.
std::string quoted(std::string_view text) {
  std::string shown(text.substr(0, 20));
  std::ranges::replace_if(
      shown, [](char c) { return c < ' ' || c > '~'; }, '?');
  return "'" + shown + (text.size() > 20 ? "...'" : "'");
}

// ---- CSV ----

constexpr std::size_t csv_pixels = 64;
constexpr std::uint8_t csv_white = 16;

struct csv_line {
  const std::string& path;
  std::string_view text;
  std::size_t number;  // from 1
  std::size_t offset;  // of its first byte in the file

  [[noreturn]] void fail(const std::string& what) const {
    fail_at(path, "line " + to_string(number) + " (byte " + to_string(offset) + ")", what);
  }
};

void read_row(const csv_line& line, labelled_images& into) {
  constexpr std::size_t columns = csv_pixels + 1;
  const auto found = static_cast<std::size_t>(std::ranges::count(line.text, ',')) + 1;
  if (found != columns) {
    line.fail(to_string(found) + (found == 1 ? " value" : " values") + ", expected " + to_string(columns) +
              " (64 pixels and the digit)");
  }
  std::size_t begin = 0;
  for (std::size_t column = 0; column < columns; ++column) {
    const std::string_view field = line.text.substr(begin, line.text.find(',', begin) - begin);
    const bool is_label = column == csv_pixels;
    const int largest = is_label ? classes - 1 : csv_white;
    int value = -1;
    const auto [stop, problem] = std::from_chars(field.data(), field.data() + field.size(), value);
    if (problem != std::errc{} || stop != field.data() + field.size() || value < 0 || value > largest) {
      fail_at(line.path,
              "line " + to_string(line.number) + ", value " + to_string(column + 1) + " (byte " +
                  to_string(line.offset + begin) + ")",
              quoted(field) + " is not " + (is_label ? "a digit" : "a pixel") + ", a whole number from 0 to " +
                  to_string(largest));
    }
    (is_label ? into.labels : into.pixels).push_back(static_cast<std::uint8_t>(value));
    begin += field.size() + 1;
  }
}

// The optional first line: what the lines below it must add up to.
struct csv_promise {
  std::size_t images;
  std::uint32_t crc;
};

csv_promise read_promise(const csv_line& line) {
  std::size_t images = 0;
  unsigned crc = 0;
  const std::string text(line.text);
  if (std::sscanf(text.c_str(), "# %zu images of 8x8, pixels 0..16, label last; crc32 of the lines below: %8x", &images,
                  &crc) != 2) {
    line.fail(quoted(text) + " is not the first line that examples/data/README.md describes");
  }
  return {images, crc};
}

labelled_images read_csv(const std::string& path) {
  const std::string text = contents(path);
  labelled_images images{csv_pixels, csv_white, {}, {}};
  csv_promise promise{};
  std::size_t promised_from = 0;
  std::size_t number = 1;
  std::size_t offset = 0;
  while (offset < text.size()) {
    const std::size_t end = text.find('\n', offset);
    const csv_line line{path, std::string_view(text).substr(offset, end - offset), number, offset};
    if (end == std::string::npos) {
      line.fail("the file ends within this line, at byte " + to_string(text.size()));
    }
    if (number == 1 && line.text.starts_with('#')) {
      promise = read_promise(line);
      promised_from = end + 1;
    } else {
      read_row(line, images);
    }
    offset = end + 1;
    ++number;
  }

  const csv_line last{path, {}, number, offset};
  if (images.size() < 2) last.fail("the file ends after " + to_string(images.size()) + " images; 2 are the least");
  if (promised_from == 0) return images;
  if (images.size() != promise.images) {
    last.fail("the file ends after " + to_string(images.size()) + " images, but line 1 announces " +
              to_string(promise.images));
  }
  const std::uint32_t crc = crc32(std::as_bytes(std::span(text).subspan(promised_from)));
  if (crc != promise.crc) {
    fail_at(path, "lines 2 to " + to_string(number - 1) + " (from byte " + to_string(promised_from) + ")",
            "their CRC-32 is " + hex(crc) + ", but line 1 announces " + hex(promise.crc) +
                ": some value has been altered");
  }
  return images;
}

labelled_images chosen(const labelled_images& from, std::span<const std::size_t> which) {
  labelled_images result{from.pixels_per_image, from.white, {}, {}};
  for (const std::size_t i : which) {
    std::ranges::copy(from.image(i), std::back_inserter(result.pixels));
    result.labels.push_back(from.labels[i]);
  }
  return result;
}

// ---- IDX: a big-endian header (magic, then the length of every dimension), then bytes ----

class idx_file {
 public:
  idx_file(std::string path, std::uint32_t magic, std::size_t dimensions)
      : path_(std::move(path)), bytes_(contents(path_)), data_at_(4 + 4 * dimensions) {
    if (bytes_.starts_with("\x1f\x8b")) fail(0, "this is a gzip file; unpack it first");
    if (bytes_.size() < data_at_) {
      fail(bytes_.size(), "the file ends within its header of " + to_string(data_at_) + " bytes");
    }
    if (word(0) != magic) fail(0, "the magic number is " + hex(word(0)) + ", expected " + hex(magic));
  }

  /// Length of a dimension, which must lie in [1, most].
  [[nodiscard]] std::size_t length(std::size_t dimension, std::uint32_t most) const {
    const std::size_t at = 4 + 4 * dimension;
    const std::uint32_t value = word(at);
    if (value < 1 || value > most) {
      fail(at, "dimension " + to_string(dimension) + " has length " + to_string(value) + ", allowed are 1 to " +
                   to_string(most));
    }
    return value;
  }

  /// The data, which must be `size` bytes up to the end of the file.
  [[nodiscard]] std::vector<std::uint8_t> data(std::size_t size) const {
    if (bytes_.size() != data_at_ + size) {
      fail(std::min(bytes_.size(), data_at_ + size),
           (bytes_.size() < data_at_ + size ? "the file ends here, but its header announces "
                                            : "the file goes on here, but its header announces ") +
               to_string(data_at_ + size) + " bytes in all");
    }
    return {bytes_.begin() + static_cast<std::ptrdiff_t>(data_at_), bytes_.end()};
  }

  [[noreturn]] void fail(std::size_t byte, const std::string& what) const {
    fail_at(path_, "byte " + to_string(byte), what);
  }

  [[nodiscard]] std::size_t data_offset() const noexcept { return data_at_; }

 private:
  [[nodiscard]] std::uint32_t word(std::size_t at) const {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<std::uint8_t>(bytes_[at + i]);
    return value;
  }

  std::string path_;
  std::string bytes_;
  std::size_t data_at_;
};

labelled_images read_idx(const std::string& images_path, const std::string& labels_path) {
  constexpr std::uint32_t most_images = 10'000'000, most_pixels = 1024;
  const idx_file images(images_path, 0x00000803, 3);
  const idx_file labels(labels_path, 0x00000801, 1);
  const std::size_t count = images.length(0, most_images);
  if (labels.length(0, most_images) != count) {
    labels.fail(4, to_string(labels.length(0, most_images)) + " labels, but " + images_path + " has " +
                       to_string(count) + " images");
  }
  labelled_images result{images.length(1, most_pixels) * images.length(2, most_pixels), 255, {}, {}};
  result.pixels = images.data(count * result.pixels_per_image);
  result.labels = labels.data(count);
  const auto wrong = std::ranges::find_if(result.labels, [](std::uint8_t label) { return label >= classes; });
  if (wrong != result.labels.end()) {
    labels.fail(labels.data_offset() + static_cast<std::size_t>(wrong - result.labels.begin()),
                "the label is " + to_string(*wrong) + ", allowed are 0 to 9");
  }
  return result;
}

}  // namespace

dataset read_digits(const std::string& path) {
  const labelled_images all = read_csv(path);
  // Shuffled, because neighbours in the file were written by the same hand; with a fixed seed, because a test
  // set that changes from run to run would in the end have been trained on.
  const std::vector<std::size_t> order = shuffled(all.size(), 0);
  const std::size_t tests = (all.size() + 4) / 5;
  return {chosen(all, std::span(order).subspan(tests)), chosen(all, std::span(order).first(tests))};
}

dataset read_mnist(const std::string& directory) {
  dataset data{read_idx(directory + "/train-images-idx3-ubyte", directory + "/train-labels-idx1-ubyte"),
               read_idx(directory + "/t10k-images-idx3-ubyte", directory + "/t10k-labels-idx1-ubyte")};
  if (data.train.pixels_per_image != data.test.pixels_per_image) {
    fail_at(directory + "/t10k-images-idx3-ubyte", "byte 8",
            to_string(data.test.pixels_per_image) + " pixels an image, but the training images have " +
                to_string(data.train.pixels_per_image));
  }
  return data;
}

}  // namespace digits
