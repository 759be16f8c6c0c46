/* tests/model/memory.pml: shared memory between ranks, and the start of a model.
 *
 * Models hvd/shared_memory/words.hpp.
 *
 * Ranks may write the same byte of mem[] after each other, and read what they wrote. They do not race: when a rank
 * issues an access to a byte, no plain store to it is outstanding, which weak searches assert of protocols that are not
 * broken on purpose. So store forwarding need not be modelled.
 * A rank (process variable `me`) uses
 *   store(l, v)    plain store              publish(l, v)  release store of a counter
 *   load(l, v)     plain load, must find v  derive(l, v)   plain store of a value computed from earlier loads
 *                                                of values w with NEEDS(v, w)
 * and reads counters, always with acquire, directly: mem[l] in a guard.
 *
 * Without WEAK every step takes effect at once: all interleavings, one order.
 * With WEAK the order is that of C++ release and acquire on hardware where a store reaches all others at once (Arm,
 * and so x86 as well): loads and stores are performed in any order and arbitrarily late, but those of one byte in
 * order, a derived store after the loads that it needs, and a release store only when all before it is performed,
 * though what comes after it may overtake it; release stores stay in order.
 *
 * With OWN no rank may store where others have read since the last store: that would have to take the line back from
 * caches that share it. This is about speed, and not about right or wrong.
 */
byte mem[BYTES];

#ifdef OWN

byte readers[BYTES]; /* since the last store, a bit for each rank */
#define store(l, v) assert((readers[l] | 1 << me) == 1 << me); readers[l] = 0; mem[l] = v
#define publish(l, v) mem[l] = v
#define derive(l, v) store(l, v)
#define load(l, v) assert(mem[l] == v); readers[l] = readers[l] | 1 << me

#elif !defined(WEAK)

#define store(l, v) mem[l] = v
#define publish(l, v) mem[l] = v
#define derive(l, v) mem[l] = v
#define load(l, v) assert(mem[l] == v)

#else

#ifndef DEPTH
#define DEPTH 14 /* operations a rank may have outstanding, at most 16; with more it waits */
#endif
#define STORE 1
#define RELEASE 2
#define DERIVE 3
#define LOAD 4

typedef outstanding { byte n; byte what[DEPTH]; byte where[DEPTH]; byte value[DEPTH] };
outstanding todo[P];
bool queued[BYTES]; /* by a plain store */

#define T todo[me]
#ifndef NEEDS
#define NEEDS(v, w) true
#endif

/* Coherence orders two plain stores to one byte. Only broken variants ever have two outstanding; there one waits. */
#ifdef BROKEN
#define CAN_ISSUE(operation, l) T.n < DEPTH && (operation == LOAD || operation == RELEASE || !queued[l])
#else
#define CAN_ISSUE(operation, l) T.n < DEPTH -> assert(operation == RELEASE || !queued[l])
#endif

inline issue(operation, l, v) {
  d_step {
    CAN_ISSUE(operation, l);
    T.what[T.n] = operation;
    T.where[T.n] = l;
    T.value[T.n] = v;
    queued[l] = (operation == STORE || operation == DERIVE || queued[l]);
    T.n++
  }
}

#define publish(l, v) issue(RELEASE, l, v)
#define store(l, v) issue(STORE, l, v)
#define derive(l, v) issue(DERIVE, l, v)
#define load(l, v) issue(LOAD, l, v)

/* Whether operation i may be performed before operation j of the same rank, j < i; and before all earlier ones. */
#define PASSES(i, j) (T.where[i] != T.where[j] \
                      && (T.what[i] != DERIVE || T.what[j] != LOAD || !NEEDS(T.value[i], T.value[j])))
#define READY(i) (i < DEPTH && T.n > i && T.what[i] != RELEASE && PASSES_##i(i))
#define PASSES_1(i) PASSES(i, 0)
#define PASSES_2(i) (PASSES_1(i) && PASSES(i, 1))
#define PASSES_3(i) (PASSES_2(i) && PASSES(i, 2))
#define PASSES_4(i) (PASSES_3(i) && PASSES(i, 3))
#define PASSES_5(i) (PASSES_4(i) && PASSES(i, 4))
#define PASSES_6(i) (PASSES_5(i) && PASSES(i, 5))
#define PASSES_7(i) (PASSES_6(i) && PASSES(i, 6))
#define PASSES_8(i) (PASSES_7(i) && PASSES(i, 7))
#define PASSES_9(i) (PASSES_8(i) && PASSES(i, 8))
#define PASSES_10(i) (PASSES_9(i) && PASSES(i, 9))
#define PASSES_11(i) (PASSES_10(i) && PASSES(i, 10))
#define PASSES_12(i) (PASSES_11(i) && PASSES(i, 11))
#define PASSES_13(i) (PASSES_12(i) && PASSES(i, 12))
#define PASSES_14(i) (PASSES_13(i) && PASSES(i, 13))
#define PASSES_15(i) (PASSES_14(i) && PASSES(i, 14))

/* Performs what rank `me` has outstanding, one operation at a time. */
proctype Memory(byte me) {
  byte i;
end:
  do
  :: atomic {
       if
       :: T.n > 0 -> i = 0
       :: READY(1) -> i = 1
       :: READY(2) -> i = 2
       :: READY(3) -> i = 3
       :: READY(4) -> i = 4
       :: READY(5) -> i = 5
       :: READY(6) -> i = 6
       :: READY(7) -> i = 7
       :: READY(8) -> i = 8
       :: READY(9) -> i = 9
       :: READY(10) -> i = 10
       :: READY(11) -> i = 11
       :: READY(12) -> i = 12
       :: READY(13) -> i = 13
       :: READY(14) -> i = 14
       :: READY(15) -> i = 15
       fi;
       d_step {
         if
         :: T.what[i] == LOAD -> assert(mem[T.where[i]] == T.value[i])
         :: else -> mem[T.where[i]] = T.value[i]; queued[T.where[i]] = false
         fi;
         do
         :: i + 1 < T.n ->
            T.what[i] = T.what[i + 1];
            T.where[i] = T.where[i + 1];
            T.value[i] = T.value[i + 1];
            i++
         :: else -> break
         od;
         T.n--;
         T.what[T.n] = 0;
         T.where[T.n] = 0;
         T.value[T.n] = 0;
         i = 0
       }
     }
  od
}

#endif

/* Starts the ranks, and the memory between them. */
init {
  byte r;
  atomic {
    do
    :: r < P ->
       run Rank(r);
#ifdef WEAK
       run Memory(r);
#endif
       r++
    :: else -> break
    od
  }
}
