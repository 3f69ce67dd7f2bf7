/* A disk whose fsync always costs the same. Preloaded, fsync and fdatasync sleep for FIXED_FSYNC_US microseconds and write
   nothing; with the files on a tmpfs that is a disk that no neighbour on the machine can slow down. For measuring only. */
#include <stdlib.h>
#include <time.h>

static long cost(void) {
    static long microseconds = -1;
    if (microseconds < 0) {
        const char *asked = getenv("FIXED_FSYNC_US");
        microseconds = asked ? atol(asked) : 250;
    }
    return microseconds;
}

static int pay(void) {
    struct timespec left = {cost() / 1000000, cost() % 1000000 * 1000};
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left)) {
    }
    return 0;
}

int fsync(int file) {
    (void)file;
    return pay();
}

int fdatasync(int file) {
    (void)file;
    return pay();
}
