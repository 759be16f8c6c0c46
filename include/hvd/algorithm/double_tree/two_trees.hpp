// hvd/algorithm/double_tree/two_trees.hpp: two binary trees over the same ranks, and the steps in which their edges are
// busy.
#pragma once

#include <hvd/version.hpp>

#include <bit>
#include <cstddef>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// Two binary trees over the places 0 .. size - 1, both with place 0 on top. No other place has children in both trees.
/// Tree 0 is place 0 above a tree over all others in symmetric order (left subtree < place < right subtree), where odd
/// places are leaves; tree 1 is place 0 above 1 above such a tree over the rest, where even places are leaves.
///
/// Edges are coloured 0 and 1 so that the edges down to the children of a place differ, and so do the edges down to a
/// place from its two parents: in steps that alternate between the colours, each place receives and sends at most one
/// message. This is the colouring of a graph without odd cycles; all places compute the same one. Cost: O(size).
class two_trees {
 public:
  struct children {
    int left = 0;  ///< 0 if there is none: place 0 has no parent
    int right = 0;
  };

  explicit two_trees(int size) : size_(size), colours_(2 * static_cast<std::size_t>(size), none) {
    struct edge {
      int tree, place;
    };
    std::vector<edge> open;
    const auto paint = [&](edge e, unsigned char with) {
      if (e.place == 0 || colour(e.tree, e.place) != none) return;
      colour(e.tree, e.place) = with;
      open.push_back(e);
    };
    for (int place = 1; place < size; ++place) {
      paint({0, place}, 0);
      while (!open.empty()) {
        const edge e = open.back();
        open.pop_back();
        const auto other = static_cast<unsigned char>(1 - colour(e.tree, e.place));
        paint({1 - e.tree, e.place}, other);
        const int above = parent(e.tree, e.place);
        if (above == 0) {
          paint({1 - e.tree, below(1 - e.tree, 0).right}, other);
        } else {
          const children both = below(e.tree, above);
          paint({e.tree, both.left == e.place ? both.right : both.left}, other);
        }
      }
    }
  }

  /// The parent of a place that is not 0.
  [[nodiscard]] int parent(int tree, int place) const noexcept {
    const int i = place - tree;
    if (i == 0) return 0;
    const int bit = i & -i;
    const int up = (i & 2 * bit) != 0 ? i - bit : i + bit;
    return (up < size_ - tree ? up : i - bit) + tree;
  }
  [[nodiscard]] children below(int tree, int place) const noexcept {
    if (place < tree) return {0, size_ > 1 ? 1 : 0};
    const int i = place - tree;
    const int last = size_ - 1 - tree;
    const int half = i == 0 ? static_cast<int>(std::bit_floor(static_cast<unsigned>(last))) : (i & -i) / 2;
    int right = half;
    while (i + right > last) right /= 2;
    return {i == 0 || half == 0 ? 0 : place - half, right == 0 ? 0 : place + right};
  }
  /// The step in which the first chunk comes down to a place that is not 0; the next ones come in every other step.
  [[nodiscard]] int arrival(int tree, int place) const {
    const int above = parent(tree, place);
    const int own = colours_[index(tree, place)];
    if (above == 0) return own;
    return arrival(tree, above) + (own == colours_[index(tree, above)] ? 2 : 1);
  }
  /// An even number that no arrival exceeds.
  [[nodiscard]] int depth() const noexcept {
    return 2 * static_cast<int>(std::bit_width(static_cast<unsigned>(size_))) + 2;
  }

 private:
  static constexpr unsigned char none = 2;
  [[nodiscard]] std::size_t index(int tree, int place) const noexcept {
    return static_cast<std::size_t>(tree) * static_cast<std::size_t>(size_) + static_cast<std::size_t>(place);
  }
  unsigned char& colour(int tree, int place) noexcept { return colours_[index(tree, place)]; }

  int size_;
  std::vector<unsigned char> colours_;
};

}  // namespace hvd::inline HVD_ABI::detail
