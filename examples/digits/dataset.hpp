// digits/dataset.hpp: labelled images, from the CSV file of this example or from the IDX files of MNIST.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace digits {

inline constexpr int classes = 10;

/// Images with the digit that each shows. Pixels stay bytes, as in the files, and become floats batch by
/// batch.
struct labelled_images {
  std::size_t pixels_per_image = 0;
  std::uint8_t white = 0;            ///< the largest pixel value, which the model sees as 1
  std::vector<std::uint8_t> pixels;  ///< image after image, each row by row
  std::vector<std::uint8_t> labels;  ///< 0 ... classes-1, one per image

  [[nodiscard]] std::size_t size() const noexcept { return labels.size(); }
  [[nodiscard]] std::span<const std::uint8_t> image(std::size_t i) const {
    return std::span(pixels).subspan(i * pixels_per_image, pixels_per_image);
  }
};

struct dataset {
  labelled_images train;
  labelled_images test;
};

/// Reads a CSV file of 8 x 8 images (examples/data/README.md has the format); a fifth of them, always the
/// same ones in whatever run, becomes the test set. The first line, with count and checksum, may be missing.
/// Throws std::runtime_error naming file, line and byte offset of what is wrong.
dataset read_digits(const std::string& path);

/// Reads {train,t10k}-{images-idx3,labels-idx1}-ubyte, not compressed, from a directory.
/// Throws std::runtime_error naming file and byte offset of what is wrong.
dataset read_mnist(const std::string& directory);

}  // namespace digits
