// hvd/algorithm/automatic.hpp: chooses the algorithm for a call, the same on all ranks.
#pragma once

#include <hvd/algorithm/bruck.hpp>
#include <hvd/algorithm/direct.hpp>
#include <hvd/algorithm/double_tree.hpp>
#include <hvd/algorithm/halving_doubling.hpp>
#include <hvd/algorithm/measure.hpp>
#include <hvd/algorithm/native.hpp>
#include <hvd/algorithm/recursive_doubling.hpp>
#include <hvd/algorithm/ring.hpp>
#include <hvd/algorithm/tree.hpp>
#include <hvd/call.hpp>
#include <hvd/error.hpp>
#include <hvd/selection.hpp>
#include <hvd/transport.hpp>

#include <string>
#include <type_traits>

namespace hvd::inline HVD_ABI {

/// The default of every collective: `direct` if ranks have common memory; the transport's own collective if it has
/// nothing else, such as NCCL; otherwise the tuning decides. If no tuning is passed and the transport has a `selector`,
/// the selector decides: by the user's HVD_TUNING, or by the costs of messages and of the transport's own collectives,
/// which are measured at the first collective and then fixed. Otherwise `default_tuning` decides, which takes the
/// transport's own collective if there is one.
template <class Tuning = default_tuning>
struct automatic {
  static constexpr bool rank_ordered = true;
  [[no_unique_address]] Tuning tuning{};

  friend constexpr bool operator==(const automatic&, const automatic&) = default;

  template <Transport T, class Call>
    requires PeerMemory<T> || PointToPoint<T> || Native<T, Call>
  void operator()(T& t, const Call& call) const {
    if constexpr (Answers<direct, T, Call>) {
      direct{}(t, call);
    } else if constexpr (!PointToPoint<T>) {
      native{}(t, call);
    } else {
      workload w = describe(t, call);
      choice what = choose_for(t, w);
      if constexpr (Native<T, Call>) {
        if (what == choice::native) {
          if (t.native(call)) return;
          w.native = false;  // not for this type or operation
          what = choose_for(t, w);
        }
      }
      switch (what) {
        case choice::ring: return attempt<ring>(t, call);
        case choice::tree: return attempt<tree>(t, call);
        case choice::recursive_doubling: return attempt<recursive_doubling>(t, call);
        case choice::halving_doubling: return attempt<halving_doubling>(t, call);
        case choice::double_tree: return attempt<double_tree>(t, call);
        case choice::bruck: return attempt<bruck>(t, call);
        case choice::native: return attempt<native>(t, call);
      }
    }
  }

  /// The algorithm that will run; `native` may still turn out not to support the type or the operation. The first call
  /// is collective, because it may measure costs.
  template <PointToPoint T, class Call>
  [[nodiscard]] choice choose(T& t, const Call& call) const {
    return choose_for(t, describe(t, call));
  }

 private:
  template <class T, class Call>
  static workload describe(T& t, const Call& call) {
    const detail::extent whole = detail::extent_of(call);
    // The blocks of alltoall_v differ between ranks, which must still make the same choice: `bytes` is 0 on all of
    // them.
    workload w{.kind = Call::kind,
               .bytes = whole.bytes(),
               .ranks = t.size(),
               .uniform = whole.uniform,
               .native = Native<T, Call>};
    if constexpr (Reducing<Call>) w.commutative = call.op.commutative;
    return w;
  }
  template <class T>
  choice choose_for(T& t, const workload& w) const {
    if constexpr (Selecting<T> && std::is_same_v<Tuning, default_tuning>) {
      if (tuning == default_tuning{}) {
        if (!t.selection().ready) make_ready(t);
        return t.selection()(w);
      }
    }
    return tuning(w);
  }
  template <class A, class T, class Call>
  static void attempt(T& t, const Call& call) {
    if constexpr (Answers<A, T, Call>) {
      if constexpr (Reducing<Call>) {
        if (!A::rank_ordered && !call.op.commutative) {
          detail::fail(error_kind::unsupported, {"the tuning chose an algorithm that does not combine ranks "
                                                 "in order for a non-commutative ",
                                                 name(Call::kind)});
        }
      }
      A{}(t, call);
    } else {
      detail::fail(error_kind::unsupported, {"the tuning chose an algorithm that cannot do ", name(Call::kind)});
    }
  }
};

}  // namespace hvd::inline HVD_ABI
