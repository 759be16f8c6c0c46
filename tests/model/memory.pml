/* tests/model/memory.pml: shared memory between ranks, and the start of a model.
 *
 * Every byte of mem[] has one writer, and no rank reads what it wrote itself, so store forwarding need not be modelled.
 * A rank (process variable `me`) uses
 *   store(l, v)    plain store              publish(l, v)  release store of a counter
 *   load(l, v)     plain load, must find v  derive(l, v)   plain store of a value computed from the loads before it
 * and reads counters, always with acquire, directly: mem[l] in a guard.
 *
 * Without WEAK every step takes effect at once: all interleavings, one order.
 * With WEAK the order is that of C++ release and acquire on hardware where a store reaches all others at once (Arm,
 * and so x86 as well): loads and stores are performed in any order and arbitrarily late, a release store only when
 * all before it is performed, though what comes after it may overtake it, and release stores stay in order.
 */
byte mem[BYTES];

#ifndef WEAK

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

/* Coherence orders two plain stores to one byte. Only broken variants ever have two outstanding; there one waits. */
#ifdef BROKEN
#define CAN_ISSUE(one) T.n < DEPTH && (one)
#else
#define CAN_ISSUE(one) T.n < DEPTH -> assert(one)
#endif

inline issue(operation, l, v) {
  d_step {
    CAN_ISSUE(operation == LOAD || operation == RELEASE || !queued[l]);
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

#define READY(i) (i < DEPTH && T.n > i && T.what[i] != RELEASE && (T.what[i] != DERIVE || NO_LOAD_##i))
#define IS_LOAD(i) (T.what[i] == LOAD)
#define NO_LOAD_1 !IS_LOAD(0)
#define NO_LOAD_2 (NO_LOAD_1 && !IS_LOAD(1))
#define NO_LOAD_3 (NO_LOAD_2 && !IS_LOAD(2))
#define NO_LOAD_4 (NO_LOAD_3 && !IS_LOAD(3))
#define NO_LOAD_5 (NO_LOAD_4 && !IS_LOAD(4))
#define NO_LOAD_6 (NO_LOAD_5 && !IS_LOAD(5))
#define NO_LOAD_7 (NO_LOAD_6 && !IS_LOAD(6))
#define NO_LOAD_8 (NO_LOAD_7 && !IS_LOAD(7))
#define NO_LOAD_9 (NO_LOAD_8 && !IS_LOAD(8))
#define NO_LOAD_10 (NO_LOAD_9 && !IS_LOAD(9))
#define NO_LOAD_11 (NO_LOAD_10 && !IS_LOAD(10))
#define NO_LOAD_12 (NO_LOAD_11 && !IS_LOAD(11))
#define NO_LOAD_13 (NO_LOAD_12 && !IS_LOAD(12))
#define NO_LOAD_14 (NO_LOAD_13 && !IS_LOAD(13))
#define NO_LOAD_15 (NO_LOAD_14 && !IS_LOAD(14))

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
