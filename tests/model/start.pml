/* tests/model/start.pml: how ranks find each other by a name, come together in a segment, and leave it.
 *
 * Models hvd/transport/shm/start.hpp, hvd/transport/shm/group.hpp, hvd/shared_memory/segment.hpp.
 *
 * Rank 0 makes a segment without a name, locks its creator byte and byte 0, and links it to the name. The others open
 * the name, look whether it is for them, lock their byte, set `entered`, then `ready`, and wait until all are ready. A
 * launch that tells itself (SELF) then removes the name; a bare name stays while the group lives. Removing is: lock the
 * name byte, see that the name means this segment, unlink. Any process may be killed at any step; the kernel then frees
 * its locks in any order. What nobody else sees (a segment without a name) is one step.
 *
 * Processes 0 to P - 1 are the first launch, P to 2P - 1 the second, of which those in the bit set SECOND exist.
 * Segment 1 is what START says; 2 is made by the first launch, 3 by the second.
 *
 * Claims, each with a flag that names it in the assertion:
 *   stuck     a deadline passes only where what is waited for was killed before anybody could know, or, with two
 *             launches, has ended or failed; with a launcher, or for a part of a living group, never.
 *   mixed     who finds a name with another living process in its place ends that group; no operation begins after.
 *             (UNNOTICED shows what cannot be promised: that a group has ranks of one launch only while none of the
 *             other's comes by to claim its place.)
 *   stays     who has entered a segment and ends by itself leaves no name of it; no name is left when all of a launch
 *             that tells itself have joined, nor when the next job has swept.
 *   removed   a name is removed only by who has checked that it means its segment; the sweep takes no living creator's.
 *   foreign   nobody joins a half-made or foreign segment.
 *   innocent  who is reported as lost was killed, in this group.
 * HASTE: deadlines pass, and those who linger give up, at any time (then `stuck` says nothing).
 * Broken on purpose: see the #ifdefs, each of which check.py defines once.
 */
#define NOTHING 0
#define STALE 1   /* left by a job that is gone */
#define ALIEN 2   /* of living processes of something else, with another nonce */
#define EARLIER 3 /* of the same processes, complete; each leaves it before it joins again, or at its end */
#ifndef P
#define P 2
#endif
#ifndef SECOND
#define SECOND 0
#endif
#ifndef START
#define START NOTHING
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef SWEEPS
#define SWEEPS 1
#endif
#ifndef TRIES
#define TRIES 1 /* looks at what others do that are not prompted by anything */
#endif

#define ALL ((1 << P) - 1)
#define EVERY (ALL | SECOND << P)
#define bit(x) (1 << (x))
#define rank (me % P)
#define made (2 + me / P)
#define at(s, r) ((s) * P + (r))
#define LAUNCHER 7
#define SWEEPER 8
#define OTHER 9

#ifdef SELF
#define KEEPS 0
#else
#define KEEPS 1
#endif
#ifdef LAUNCHED
#define BY_LAUNCHER 1
#else
#define BY_LAUNCHER 0
#endif
#if defined(PART) || defined(LAUNCHED)
#define KNOWN 1 /* who is gone */
#else
#define KNOWN 0
#endif
#if defined(PART) && !defined(NO_WATCH)
#define lost(k) (!(parent & bit(k)))
#else
#define lost(k) 0
#endif

/* Another kind's claims are switched off by -Dkind=1 where one is searched for. */
#ifndef stuck
bool stuck
#endif
#ifndef mixed
bool mixed
#endif
#ifndef stays
bool stays
#endif
#ifndef removed
bool removed
#endif
#ifndef foreign
bool foreign
#endif
#ifndef innocent
bool innocent
#endif

/* Abort words. */
#define TIMEOUT 10
#define CLAIM 11
#define GONE(k) (1 + (k))

byte name; /* the segment that the name means */
byte creator[4], namer[4], place[4 * P]; /* who holds the lock, plus one */
byte entered[4], ready[4], left[4]; /* sets of ranks */
byte abort[4];
bool half[4]; /* not filled yet */
short parent = ALL; /* ranks that hold their locks in the group of which this one is a part */

/* What only the claims look at. */
short dying, killed, ended = ((1 << 2 * P) - 1) & ~EVERY; /* who does not exist has ended */
short failed;     /* who has an error, and lingers */
byte came[4];    /* ranks that hold their place and have said so, or should have */
byte victims[4]; /* of them, killed */
bool outlived[4]; /* who had entered it has ended by itself */
bool claimed[4];
#ifdef UNNOTICED
byte from[4]; /* of which launches */
#endif
byte through; /* ranks of the first launch that have joined */
byte victim[2];

#define complete(s) (ready[s] == ALL)
#ifdef NO_NONCE
#define alien(s) false
#else
#define alien(s) (s == 1 && START == ALIEN)
#endif
#ifdef SAME_PROCESS
#define another(x) true
#else
#define another(x) ((x) != me + 1)
#endif
#define other_claim(s) (complete(s) && place[at(s, rank)] && another(place[at(s, rank)]) && !(left[s] & bit(rank)))
#define gone_in(s, k) (k != rank && (entered[s] & bit(k)) && !place[at(s, k)])
#define give_up(s, why) atomic { if :: !abort[s] -> abort[s] = why :: else fi }
#define blame(s, k) assert((killed & (bit(k) | bit(P + (k)) | bit(LAUNCHER))) || innocent)
#define give_up_lost(s, k) atomic { if :: !abort[s] -> blame(s, k); abort[s] = GONE(k) :: else fi }

/* segment::unlink: whoever finds the byte locked waits until the other has done it, or was killed. */
inline unlink_name(s) {
#ifndef NO_NAME_LOCK
  if
  :: atomic { !namer[s] -> namer[s] = me + 1 }
#endif
#ifndef NO_INODE_CHECK
     if
     :: name == s ->
#endif
        atomic {
          assert(!name || name == s || removed);
          assert(me != SWEEPER || !creator[name] || removed);
          name = 0
        }
#ifndef NO_INODE_CHECK
     :: else
     fi;
#endif
#ifndef NO_NAME_LOCK
     namer[s] = 0
#ifdef SKIP_LOCKED
  :: namer[s] -> skip
#endif
  :: name != s -> skip
  fi
#endif
}

/* The last descriptor is closed. */
inline close(s) {
  atomic {
    if :: creator[s] == me + 1 -> creator[s] = 0 :: else fi;
    if :: place[at(s, rank)] == me + 1 -> place[at(s, rank)] = 0 :: else fi
  }
}

inline leave(s) {
#ifndef NO_LEFT
  left[s] = left[s] | bit(rank);
#endif
  if
  :: KEEPS -> unlink_name(s)
  :: else
  fi
}

#define let_go(lock) :: lock == me + 1 -> lock = 0
/* What the kernel does with the locks of a process that was killed. */
inline release() {
  do
  let_go(creator[1])
  let_go(creator[2])
  let_go(creator[3])
  let_go(namer[1])
  let_go(namer[2])
  let_go(namer[3])
  let_go(place[at(1, rank)])
  let_go(place[at(2, rank)])
  let_go(place[at(3, rank)])
#ifdef PART
  :: parent & bit(rank) -> parent = parent & ~bit(rank)
#endif
  :: else -> break
  od
}

inline fall() {
  atomic {
    killed = killed | bit(me);
    if :: (came[2] & bit(rank)) && place[at(2, rank)] == me + 1 -> victims[2] = victims[2] | bit(rank) :: else fi;
    if :: (came[3] & bit(rank)) && place[at(3, rank)] == me + 1 -> victims[3] = victims[3] | bit(rank) :: else fi
  }
}

proctype Rank(byte me) {
  byte s, k;
  bool again, dead, had, is_ready;
  byte tries = TRIES;
  {
    again = false;
#if START == EARLIER
    if
    :: leave(1); close(1)
    :: true
    fi;
#endif
find: /* group_finder::find */
    s = name;
    if
    :: !s -> dead = false
    :: s && !creator[s] ->
#ifdef TAKE_STALE
       if
       :: !complete(s) -> goto join
       :: else
       fi;
#endif
       dead = true
    :: s && creator[s] ->
       if
       :: alien(s)
       :: !alien(s) && !complete(s) -> goto join
       :: !alien(s) && complete(s) ->
          if
#ifndef NO_CLAIM_FOUND
          :: other_claim(s) -> goto claim
#endif
          :: else -> assert(!other_claim(s) || mixed)
          fi
       fi;
       dead = !creator[s]
    fi;
    if
    :: s && (dead || rank == 0) -> unlink_name(s)
    :: else
    fi;
    if
    :: rank == 0 && !BY_LAUNCHER ->
       if
       :: atomic {
            !name ->
            s = made;
#ifdef HALF_MADE
            half[s] = true;
#endif
#ifdef LOCK_LATE
            name = s
          }
          atomic {
#endif
#ifndef NO_CREATOR_LOCK
            creator[s] = me + 1;
#endif
            place[at(s, 0)] = me + 1
#ifndef LOCK_LATE
            ; name = s
#endif
          }
#ifdef HALF_MADE
          half[s] = false;
#endif
          goto join
       :: name -> skip
       fi
    :: else ->
#ifdef BLAME_AT_ONCE
       if
       :: dead ->
#elif defined(BLAME_OTHERS)
       if
       :: dead && again ->
#else
       if
       :: dead && again && !(entered[s] & bit(rank)) ->
#endif
          if
          :: abort[s] == 0 -> blame(s, 0)
          :: abort[s] && abort[s] <= P -> k = abort[s] - 1; blame(s, k)
          :: else
          fi;
          goto end_
       :: else
       fi
    fi;
    again = true;
    dead = false;
    if /* nap */
    :: rank != 0 && name != s -> goto find
    :: rank != 0 && s && name == s && (!creator[s] || other_claim(s)) -> goto find
    :: rank == 0 && (!name || !namer[name]) -> goto find
    :: tries -> tries--; goto find
#ifdef PART
    :: atomic { lost(0) -> k = 0 } -> goto forget
    :: atomic { lost(1) -> k = 1 } -> goto forget
#if P > 2
    :: atomic { lost(2) -> k = 2 } -> goto forget
#endif
#endif
#ifdef HASTE
    :: true
#else
    :: timeout ->
       assert((!KNOWN && (killed & 1)) || (SECOND && ((ended | failed) & bit(me / P * P))) || stuck)
#endif
    fi;
    goto end_;
#ifdef PART
forget:
    s = name;
    if
    :: s -> unlink_name(s)
    :: else
    fi;
    blame(made, k);
    goto end_;
#endif

claim:
    atomic {
      assert(place[at(s, rank)] != me + 1 || innocent);
#ifndef CLAIM_UNSAID
      if :: !abort[s] -> abort[s] = CLAIM :: else fi;
#endif
      claimed[s] = true
    }
    goto end_;

join:
    assert(s != 1 && !half[s] || foreign);
#ifdef ENTERED_FIRST
    entered[s] = entered[s] | bit(rank);
#endif
    if
    :: atomic { !place[at(s, rank)] || place[at(s, rank)] == me + 1 -> place[at(s, rank)] = me + 1 }
#ifdef NO_PLACE_LOCK
    :: atomic { place[at(s, rank)] && place[at(s, rank)] != me + 1 -> place[at(s, rank)] = me + 1 }
#else
    :: place[at(s, rank)] && place[at(s, rank)] != me + 1 -> goto claim
#endif
    fi;
    atomic {
      had = entered[s] & bit(rank);
      came[s] = came[s] | bit(rank);
#ifdef UNNOTICED
      from[s] = from[s] | bit(me / P);
#endif
#ifndef NO_ENTERED
      entered[s] = entered[s] | bit(rank)
#endif
    }
#ifndef ENTERED_FIRST
    if
    :: had ->
       assert(((victims[s] | left[s]) & bit(rank)) || innocent);
       give_up(s, GONE(rank));
       goto abandon
    :: else
    fi;
#endif
#ifdef UNLINK_EARLY
    unlink_name(s);
#endif
    ready[s] = ready[s] | bit(rank);
    is_ready = true;

await: /* shm_group::await_all */
    do
    :: complete(s) -> break
    :: !complete(s) && (tries || abort[s] || !creator[s] || gone_in(s, 0) || gone_in(s, 1) || gone_in(s, P - 1)
                        || lost(0) || lost(1) || lost(P - 1)) ->
       if
       :: tries && !abort[s] -> tries--
       :: else
       fi;
       if
       :: abort[s] -> goto abandon
       :: else
       fi;
       if
       :: !BY_LAUNCHER && !creator[s] ->
#ifndef NO_SECOND_LOOK
          if
          :: complete(s) -> break
          :: else ->
#endif
             give_up_lost(s, 0)
#ifndef NO_SECOND_LOOK
          fi
#endif
       :: else
       fi;
       if /* at one of the others: who is next is looked at in the next round */
       :: gone_in(s, 0) -> k = 0; goto missed
       :: gone_in(s, 1) -> k = 1; goto missed
#if P > 2
       :: gone_in(s, 2) -> k = 2; goto missed
#endif
#ifdef PART
       :: lost(0) && !(entered[s] & 1) -> give_up_lost(s, 0)
       :: lost(1) && !(entered[s] & 2) -> give_up_lost(s, 1)
#if P > 2
       :: lost(2) && !(entered[s] & 4) -> give_up_lost(s, 2)
#endif
#endif
       :: else
       fi;
       if
       :: false ->
missed:
          if
          :: !(ready[s] & bit(k)) || !(left[s] & bit(k)) -> give_up_lost(s, k)
          :: else
          fi;
          k = 0
       :: else
       fi
#ifdef HASTE
    :: !complete(s) -> give_up(s, TIMEOUT)
#else
    :: timeout ->
       assert((!KNOWN && (killed & ~victims[s] & ALL & ~ready[s]))
              || (SECOND && ((ended | failed) >> me / P * P & ALL & ~ready[s])) || stuck);
       give_up(s, TIMEOUT)
#endif
    od;
    if
    :: abort[s] -> goto abandon
    :: else
    fi;
    if
    :: KEEPS
    :: !KEEPS -> unlink_name(s)
    fi;
    if
    :: me < P -> atomic { through++; assert(through < P || KEEPS || name != s || stays) }
    :: else
    fi;
    /* An operation. */
    if
#ifdef NO_LOOK
    :: atomic { true -> assert(!claimed[s] || mixed) }
#elif defined(UNNOTICED)
    :: atomic { !abort[s] -> assert(from[s] != 3 || mixed) }
#else
    :: atomic { !abort[s] -> assert(!claimed[s] || mixed) }
#endif
    :: abort[s]
    fi;
    leave(s);
    goto out;

abandon:
    failed = failed | bit(me);
    if
    :: is_ready -> left[s] = left[s] | bit(rank)
    :: else
    fi;
#ifdef LEAVE_AT_ONCE
    unlink_name(s);
#endif
    if
    :: BY_LAUNCHER
    :: !BY_LAUNCHER ->
#ifndef NO_LINGER
       if
       :: entered[s] == ALL
#ifdef HASTE
       :: true
#else
       :: timeout
#endif
       fi;
#endif
#ifndef NAME_FORGOTTEN
       unlink_name(s)
#endif
    fi;
out:
    if
    :: BY_LAUNCHER
    :: !BY_LAUNCHER -> outlived[s] = true
    fi;
    close(s);
end_:
#if START == EARLIER
    if
    :: place[at(1, rank)] == me + 1 -> leave(1); close(1)
    :: else
    fi;
#endif
    skip
  } unless {
    (dying & bit(me)) -> fall(); release()
  }
  atomic {
    ended = ended | bit(me);
    s = 0; k = 0; again = 0; dead = 0; had = 0; is_ready = 0; tries = 0
  }
}

/* fork_run: makes the segment before there are ranks, sees how each ends, and removes the name. */
proctype Launcher(byte me) {
  byte seen, k;
  {
    do
    :: ended & ALL & ~seen ->
       atomic {
         if
         :: ended & ~seen & 1 -> k = 0
         :: ended & ~seen & 2 -> k = 1
         :: ended & ~seen & ALL & 4 -> k = 2
         fi;
         seen = seen | bit(k)
       }
#ifndef NO_REPORT
       if
       :: !(ready[2] & bit(k)) -> give_up(2, GONE(k))
       :: else
       fi
#endif
    :: seen == ALL -> break
    od;
    unlink_name(2);
    outlived[2] = true;
    creator[2] = 0
  } unless {
    (dying & bit(LAUNCHER)) ->
      killed = killed | bit(LAUNCHER);
      atomic { creator[2] = 0; if :: namer[2] == LAUNCHER + 1 -> namer[2] = 0 :: else fi }
      dying = dying | ALL
  }
  ended = ended | bit(LAUNCHER)
}

#ifdef SWEEP_BLIND
#define held(s) false
#else
#define held(s) (creator[s] || namer[s] || place[at(s, 0)] || place[at(s, 1)] || place[at(s, P - 1)])
#endif

/* Another job of the user begins. */
proctype Sweeper(byte me) {
  byte s, n;
  do
  :: n < SWEEPS ->
     s = name;
     if
     :: s && !held(s) -> unlink_name(s)
     :: else
     fi;
     n++
  :: n == SWEEPS -> break
  od;
  s = 0
}

proctype Killer() {
  byte n;
  do
  :: n < KILLS ->
     dying = dying | (victim[n] < 15 -> bit(victim[n]) : 0);
     n++
  :: n == KILLS -> break
  od
}

/* Somebody who may be killed; 15 is nobody. */
inline choose(v) {
  if
  :: v = 0
  :: v = 1
  :: v = P - 1
  :: SECOND & 1 -> v = P
  :: SECOND & 2 -> v = P + 1
  :: BY_LAUNCHER -> v = LAUNCHER
  :: v = 15
  fi
}

init {
  byte i;
  atomic {
#if KILLS > 0
    choose(victim[0]);
#endif
#if KILLS > 1
    choose(victim[1]);
#endif
#if START != NOTHING
    name = 1;
    if
    :: entered[1] = ALL; ready[1] = ALL
    :: START != EARLIER -> entered[1] = 1; ready[1] = 1
    fi;
#if START == ALIEN
    creator[1] = OTHER + 1;
    place[at(1, 0)] = OTHER + 1;
#endif
#if START == EARLIER
    creator[1] = 1;
    i = 0;
    do
    :: i < P -> place[at(1, i)] = i + 1; i++
    :: i == P -> break
    od;
#endif
#endif
#ifdef LAUNCHED
    name = 2;
    creator[2] = LAUNCHER + 1;
    run Launcher(LAUNCHER);
#endif
    i = 0;
    do
    :: i < 2 * P && (EVERY & bit(i)) -> run Rank(i); i++
    :: i < 2 * P && !(EVERY & bit(i)) -> i++
    :: i == 2 * P -> i = 0; break
    od;
#if SWEEPS > 0
    run Sweeper(SWEEPER);
#endif
#if KILLS > 0
    run Killer()
#endif
  }
  (_nr_pr == 1);
  atomic {
    assert(!name || !outlived[name] || stays);
    assert(!name || (START == ALIEN && name == 1) || !held(name) || stays) /* the next job's sweep takes it */
  }
}
