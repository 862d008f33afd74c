// Runs GoogleTest under mpirun: every rank runs every test; the job fails if any rank failed.

#include <mpi.h>

#include <gtest/gtest.h>

#include "comm/mpi.h"

int main(int argc, char** argv) {
  const quantmill::MpiEnvironment mpi;
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  testing::InitGoogleTest(&argc, argv);
  if (rank != 0) {
    delete testing::UnitTest::GetInstance()->listeners().Release(
        testing::UnitTest::GetInstance()->listeners().default_result_printer());
  }
  int failed = RUN_ALL_TESTS();
  int failed_anywhere = 0;
  MPI_Allreduce(&failed, &failed_anywhere, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  if (rank == 0 && failed_anywhere != 0 && failed == 0) {
    std::printf("a rank other than 0 failed\n");
  }
  return failed_anywhere;
}
