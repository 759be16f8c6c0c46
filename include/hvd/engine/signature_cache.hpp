// hvd/engine/signature_cache.hpp: numbers for the signatures on which all ranks have agreed.
#pragma once

#include <hvd/engine/signature.hpp>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// Sets of numbers, a bit each.
class bits {
 public:
  void resize(std::size_t count) { words_.resize((count + 63) / 64); }
  void set(std::size_t i) noexcept { words_[i / 64] |= std::uint64_t{1} << i % 64; }
  [[nodiscard]] bool has(std::size_t i) const noexcept { return (words_[i / 64] >> i % 64 & 1) != 0; }
  void clear() noexcept { words_.assign(words_.size(), 0); }
  [[nodiscard]] std::vector<std::uint64_t>& words() noexcept { return words_; }
  [[nodiscard]] const std::vector<std::uint64_t>& words() const noexcept { return words_; }

 private:
  std::vector<std::uint64_t> words_;
};

/// All ranks make every change in the same order, so that all have the same signature cache. A name has a variant for
/// each of its signatures, and each variant is a separate entry. So a tensor whose shape changes is negotiated again
/// while all others go on, and is known again when the old shape comes back.
class signature_cache {
 public:
  struct entry {
    std::string name{};
    signature what{};
    int priority = 0;
    std::uint64_t used = 0;  ///< the count of uses at the last one
  };

  /// Holds at most `capacity` entries, unless more are in use at a time.
  explicit signature_cache(std::size_t capacity) : capacity_(capacity) {}

  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
  [[nodiscard]] const entry& operator[](std::size_t id) const noexcept { return entries_[id]; }
  /// The number of a signature under a name, or -1.
  [[nodiscard]] int find(const std::string& name, const signature& what) const {
    const auto found = names_.find(name);
    if (found == names_.end()) return -1;
    for (const std::uint32_t id : found->second) {
      if (entries_[id].what == what) return static_cast<int>(id);
    }
    return -1;
  }
  /// Names that have several variants, with their numbers.
  template <class F>
  void each_ambiguous(const F& f) const {
    for (const std::string& name : ambiguous_) f(name, names_.at(name));
  }

  /// Adds an entry. If the signature cache is full, it replaces the least recently used entry that no rank has
  /// submitted (`wanted`). `evicted` is set to the number of that entry, or -1.
  std::uint32_t add(const announcement& a, const bits& wanted, int& evicted) {
    evicted = -1;
    std::uint32_t id = static_cast<std::uint32_t>(entries_.size());
    if (entries_.size() >= capacity_) evicted = oldest(wanted);
    if (evicted >= 0) {
      id = static_cast<std::uint32_t>(evicted);
      forget(id);
    } else {
      entries_.emplace_back();
    }
    entries_[id] = {a.name, a.what, a.priority, ++uses_};
    auto& variants = names_[a.name];
    variants.push_back(id);
    if (variants.size() == 2) ambiguous_.insert(a.name);
    return id;
  }
  void meet(std::size_t id, std::uint64_t place) noexcept { entries_[id].what.meet(place); }
  void use(std::size_t id) noexcept { entries_[id].used = ++uses_; }

 private:
  [[nodiscard]] int oldest(const bits& wanted) const noexcept {
    int found = -1;
    for (std::size_t id = 0; id != entries_.size(); ++id) {
      if (id / 64 < wanted.words().size() && wanted.has(id)) continue;
      if (found < 0 || entries_[id].used < entries_[static_cast<std::size_t>(found)].used) found = static_cast<int>(id);
    }
    return found;
  }
  void forget(std::uint32_t id) {
    const auto at = names_.find(entries_[id].name);
    std::erase(at->second, id);
    if (at->second.size() == 1) ambiguous_.erase(at->first);
    if (at->second.empty()) names_.erase(at);
  }

  std::size_t capacity_;
  std::uint64_t uses_ = 0;
  std::vector<entry> entries_;
  std::unordered_map<std::string, std::vector<std::uint32_t>> names_;
  std::set<std::string> ambiguous_;  // names with several variants
};

}  // namespace hvd::inline HVD_ABI::detail
