# Golden values of DeLong's variance, interval and paired test, from pROC (Robin et al., 2011).
#
#   Rscript tests/metrics/golden/delong.R > tests/metrics/golden/delong.json
#
# Debian 12: apt-get install r-base-core r-cran-proc. Written with R 4.2.2 and pROC 1.18.0.
suppressMessages(library(pROC))

numbers <- function(x) paste0("[", paste(sprintf("%.17g", x), collapse = ", "), "]")

case <- function(name, labels, a, b) {
  roc_a <- roc(labels, a, direction = "<", levels = c(0, 1), quiet = TRUE)
  roc_b <- roc(labels, b, direction = "<", levels = c(0, 1), quiet = TRUE)
  plain <- suppressWarnings(as.numeric(ci.auc(roc_a, method = "delong")))
  test <- suppressWarnings(roc.test(roc_a, roc_b, paired = TRUE, method = "delong"))
  se_logit <- sqrt(var(roc_a, method = "delong")) / (auc(roc_a) * (1 - auc(roc_a)))
  logit <- plogis(as.numeric(qlogis(auc(roc_a))) + c(-1, 1) * qnorm(0.975) * as.numeric(se_logit))
  cat(sprintf('  {"name": "%s",\n   "labels": %s,\n   "a": %s,\n   "b": %s,\n', name, numbers(labels), numbers(a), numbers(b)))
  cat(sprintf('   "auc_a": %.17g, "auc_b": %.17g, "var_a": %.17g, "cov_ab": %.17g,\n',
              auc(roc_a), auc(roc_b), var(roc_a, method = "delong"), cov(roc_a, roc_b, method = "delong")))
  cat(sprintf('   "plain_interval": %s, "logit_interval": %s,\n', numbers(plain[c(1, 3)]), numbers(logit)))
  cat(sprintf('   "z": %.17g, "p_value": %.17g, "difference_interval": %s}',
              test$statistic, test$p.value, numbers(as.numeric(test$conf.int))))
}

set.seed(1)
cat(sprintf('{"made_by": "%s, pROC %s", "cases": [\n', R.version.string, packageVersion("pROC")))

y <- rep(c(1, 0), c(40, 60))
x <- rnorm(100) + y
case("balanced, no ties", y, round(x, 6), round(x + rnorm(100), 6)); cat(",\n")

y <- rep(c(1, 0), c(12, 188))
x <- rnorm(200) + 1.5 * y
case("6 % positives, many ties", y, round(2 * x) / 2, round(x + rnorm(200))); cat(",\n")

case("small, with ties", c(1, 1, 1, 0, 0, 0, 0), c(3, 2, 2, 2, 1, 0, 0), c(1, 3, 2, 2, 2, 0, 1)); cat(",\n")

y <- as.numeric(runif(80) < 0.3)
x <- rnorm(80) + 2.5 * y
case("near one", y, round(x, 3), round(x + 2 * rnorm(80), 3)); cat(",\n")

y <- rep(c(1, 0), c(30, 50))
case("below one half", y, round(rnorm(80) - 0.4 * y, 3), round(rnorm(80), 1))
cat("\n]}\n")
