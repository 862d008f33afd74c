# What the tests need in a build with sanitizers (QUANTMILL_SANITIZE), and all that is left out of them there, with reasons.
# Sets QUANTMILL_SANITIZER_ENVIRONMENT, for tests/support/jobs.py and the sanitizers, and QUANTMILL_THREADED_TESTS.

set(QUANTMILL_SANITIZER_ENVIRONMENT "")
set(support ${CMAKE_CURRENT_SOURCE_DIR}/support)
# Tests of Python that are left out: "Class.method", as jobs.py knows them.
set(left_out "")

if(QUANTMILL_SANITIZE)
  # Instead of twenty jobs that resume.py kills three times each, at random times.
  list(APPEND QUANTMILL_SANITIZER_ENVIRONMENT "CRASH_RUNS=4")
endif()

if(QUANTMILL_SANITIZE MATCHES "address")
  # verify_asan_link_order=0: faults.c is preloaded, so it comes before the runtime, and passes calls on to it.
  # allocator_may_return_null=1: malloc of an absurd size fails, as it does without the sanitizer, and ends no process.
  list(APPEND QUANTMILL_SANITIZER_ENVIRONMENT
       "ASAN_OPTIONS=verify_asan_link_order=0:allocator_may_return_null=1:strict_string_checks=1:detect_stack_use_after_return=1"
       "LSAN_OPTIONS=suppressions=${support}/leaks.supp:print_suppressions=0"
       "UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1")
  # The limit that it sets on the address space is below what the sanitizer's shadow has; and operator new of the sanitizer
  # ends the process where that of the C++ library throws bad_alloc.
  list(APPEND left_out Changes.test_memory_runs_out)
  # They want less memory than the sanitizer alone takes.
  list(APPEND left_out Report.test_peak_memory_is_the_programs_own Memory.test_too_little_is_refused_and_what_is_needed_is_enough)
endif()

if(QUANTMILL_SANITIZE MATCHES "thread")
  list(APPEND QUANTMILL_SANITIZER_ENVIRONMENT
       "TSAN_OPTIONS=suppressions=${support}/races.supp:print_suppressions=0:second_deadlock_stack=1:history_size=4"
       # Ranks have as many threads where a test does not say how many, and in jobs that are slowed down to be interrupted.
       "QUANTMILL_TEST_THREADS=3")
  # As above.
  list(APPEND left_out Changes.test_memory_runs_out Memory.test_too_little_is_refused_and_what_is_needed_is_enough)
endif()

list(REMOVE_DUPLICATES left_out)
list(JOIN left_out "," left_out)
list(APPEND QUANTMILL_SANITIZER_ENVIRONMENT "QUANTMILL_TESTS_LEFT_OUT=${left_out}")

# The jobs that show what threads do, labelled `threads` (in every build) for the test preset `tsan`; with the unit tests
# and mpi.* all of what it runs. The others run the same workers on other formats and only take longer.
set(QUANTMILL_THREADED_TESTS
    job.same_bytes # one to seven threads, on one to four ranks and several nodes
    job.resume # kills and signals in every phase, and what goes on from there
    job.faults # a worker that fails while others work; the heartbeat's thread
    job.progress # the heartbeat's thread draws a line while workers log
    job.scale_search # every search
    job.scaling # Gram statistics shared by workers
    job.gptq # factors shared by workers, freed when the last is done
    job.target_bits # the error table's workers
    job.carried # tensors copied by several workers
    job.verify_ranks # verify
    job.diff # diff
    job.report) # report: codes counted by several threads
