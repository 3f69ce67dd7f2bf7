/* The lease, the tombstone and the re-creation of one conversation id, as PROTOCOL.md rules them.
 *
 * Two workers with a token each, a late copy of the first worker's acquire, a user without a token, somebody who deletes and
 * re-creates, a late copy of the create, and a clock that lets leases expire. Every atomic block is one transaction.
 *
 * Compiled as it is, no assertion may fail. Each of these takes one rule out, and the checker must find the fault:
 *   FENCE_IN_ROW      the fencing number is counted in the row, so that a new life begins at 1 again, and only it is compared
 *   TOKEN_TWICE       a token whose turn has ended may begin another one
 *   NO_TOMBSTONE      a deletion leaves nothing, so a late create finds a free id
 *   REVIVE_TAKEN      a holder whose lease was taken over revives it by its next save
 *   EXPIRY_ONLY       only the expiry of a turn settles its partial messages
 *   LEASE_UNCHECKED   a call without a token is not held back by somebody's lease
 */

#define LIVES 3
#define USED(token) used[life * 3 + token]

bool alive = true;
byte life = 0;             /* the incarnation: never reused */
byte fence = 0;            /* the generation counter: for the whole store */
byte generation = 0;       /* of the row; 0 = idle */
byte holder = 0;           /* the token in the row */
bool expired = false;
bool partial = false;      /* a message of the turn is still partial */
bool used[9];              /* which token has begun a turn in which life */

byte granted = 0;          /* ghost: the newest generation that was given to anybody */
bool resurrected = false;  /* ghost: a life that nobody asked for */
bool first_ended = false;  /* ghost: the first worker's turn is over */

#ifdef EXPIRY_ONLY
#define SETTLED_BY(expiry) (expiry)
#else
#define SETTLED_BY(expiry) (true)
#endif

inline end_turn(by_expiry) {
    partial = partial && !SETTLED_BY(by_expiry);
    if :: holder == 1 -> first_ended = true :: else fi;
    generation = 0; holder = 0; expired = false
}

inline begin_turn(token) {
    if :: generation != 0 -> end_turn(true) :: else fi;
    fence++;
    generation = fence; granted++; holder = token; expired = false;
    USED(token) = true
}

proctype Worker(byte token; byte tries) {
    byte mine = 0, my_life = 0, my_grant = 0;
    bool accepted;
    do
    :: tries > 0 -> atomic {
        tries--;
        if
        :: mine == 0 && alive ->                                   /* acquire */
            if
            :: generation != 0 && holder == token -> mine = generation; my_life = life; my_grant = granted
            :: else ->
                if
#ifndef TOKEN_TWICE
                :: USED(token) -> skip                             /* lease-lost */
#endif
                :: generation != 0 && !expired -> skip             /* generating */
                :: else -> begin_turn(token); mine = generation; my_life = life; my_grant = granted
                fi
            fi
        :: mine != 0 ->                                            /* save, or finish */
#ifdef FENCE_IN_ROW
            accepted = alive && generation == mine;
#else
            accepted = alive && generation != 0 && holder == token;
#endif
#ifdef REVIVE_TAKEN
            if :: alive && !accepted && USED(token) -> accepted = true; holder = token :: else fi;
#endif
            if
            :: accepted ->
                assert(life == my_life);                           /* never into another life */
                assert(granted == my_grant);                       /* never past a newer grant */
                expired = false;
                if :: partial = true :: end_turn(false); mine = 0 fi
            :: else -> mine = 0                                    /* lease-lost or deleted: it stops */
            fi
        :: else -> skip
        fi
      }
    :: tries == 0 -> break
    od
}

proctype LateAcquire() {                                           /* the first worker's call, delivered once more */
    atomic {
        if
        :: alive && !(generation != 0 && holder == 1) && life == 0 ->
            if
#ifndef TOKEN_TWICE
            :: USED(1) -> skip
#endif
            :: generation != 0 && !expired -> skip
            :: else -> assert(!first_ended); begin_turn(1)         /* nobody would know of this lease */
            fi
        :: else -> skip
        fi
    }
}

proctype User(byte tries) {                                        /* appends, without a token */
    do
    :: tries > 0 -> atomic {
        tries--;
        if
#ifdef LEASE_UNCHECKED
        :: alive ->
#else
        :: alive && (generation == 0 || expired) ->
#endif
            assert(generation == 0 || expired);                    /* never into a live turn */
            if :: generation != 0 -> end_turn(true) :: else fi
        :: else -> skip
        fi
      }
    :: tries == 0 -> break
    od
}

proctype Owner() {                                                 /* deletes, by force, and begins a new life */
    byte n = 0;
    do
    :: n < LIVES - 1 ->
        atomic { if :: generation != 0 -> end_turn(false) :: else fi; alive = false; partial = false };
        atomic {
            life++; alive = true; n++;
#ifdef FENCE_IN_ROW
            fence = 0
#endif
        }
    :: break
    od;
    atomic { if :: generation != 0 -> end_turn(false) :: else fi; alive = false; partial = false };
    assert(!resurrected)
}

proctype LateCreate() {                                            /* the first create, delivered once more */
    atomic {
        if
#ifdef NO_TOMBSTONE
        :: !alive -> alive = true; resurrected = true; assert(false)   /* what was deleted is back */
#endif
        :: else -> skip                                            /* it exists, or 410 */
        fi
    }
}

proctype Clock(byte tries) {
    do
    :: tries > 0 -> atomic { tries--; if :: generation != 0 -> expired = true :: else -> skip fi }
    :: tries == 0 -> break
    od
}

proctype Reader() {                                                /* partial is of a turn that goes on */
    atomic { assert(!(partial && generation == 0)) }
}

init {
    atomic {
        run Worker(1, 4); run Worker(2, 4); run LateAcquire(); run User(2); run Owner(); run LateCreate(); run Clock(2);
        run Reader()
    }
}
