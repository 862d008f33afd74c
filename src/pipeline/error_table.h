#pragma once

// What each candidate scheme of a target costs in accuracy, tensor by tensor: measured from the
// weights and the statistics, without running the model.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "device/context.h"
#include "pipeline/fingerprint.h"
#include "pipeline/team.h"
#include "plan/column_importance.h"
#include "plan/target.h"
#include "stats/statistics.h"

namespace quantmill {

// As a file: a JSON object of error_table_schema (1), inputs (fingerprint), and tensors: {name:
// {energy, errors: {scheme: number}}}.
struct ErrorTable {
  struct Tensor {
    // sum_k E[x_k^2] w_k^2 over the weight (of each w in column k), but for a factor that all
    // errors of the tensor share; plain squares where nothing is known of x.
    double energy = 0;
    // sum_k E[x_k^2] (w - w^)^2, rounded to the nearest with the recipe's scale rule, unscaled; 0
    // where codes are carried over.
    std::map<Scheme, double> errors;

    // Of the energy; 0 for a scheme of nothing.
    [[nodiscard]] double relative(std::optional<Scheme> scheme) const;
  };

  Fingerprint inputs;
  std::map<std::string, Tensor> tensors;  // by ModelTensor::name
};

// What a table depends on: the source, the statistics or given scales, and of the recipe what
// decides how codes are made.
Fingerprint error_table_inputs(const Checkpoint& checkpoint,
                               const Recipe& recipe,
                               const Statistics& statistics,
                               const std::optional<std::filesystem::path>& given_scales);

// The errors of every candidate; `inputs` is left empty. Reads the weights once for
// each candidate. buffer_bytes: of each worker. The same for any number of ranks, threads and
// memory. Collective over team.world; every rank gets the table. Errors as RowProducer::produce.
ErrorTable measure_error_table(const Team& team,
                               const Context& context,
                               const Checkpoint& checkpoint,
                               const std::vector<CandidatePlan>& candidates,
                               const ColumnImportance& importance,
                               std::uint64_t buffer_bytes);

std::string print_error_table(const ErrorTable& table);

// kInput, starting with `what`, for anything that print_error_table could not have made.
ErrorTable parse_error_table(const std::string& text, const std::string& what);

// kUsage, starting with `what` and naming the first difference, if the table is of other inputs or
// lacks a tensor or candidate of the problem.
void check_error_table(const ErrorTable& table,
                       const TargetProblem& problem,
                       const Fingerprint& inputs,
                       const std::string& what);

// The loss of each group's choices (choose_within): of its tensors' relative errors.
std::vector<std::vector<double>> losses_of(const TargetProblem& problem, const ErrorTable& table);

}  // namespace quantmill
