#!/usr/bin/env bash
# Submits a program that calls streamjoin.spark.join to YARN; its nodes need a Python of the driver's version and no packages.
#     deploy/pack-environment.sh environment.zip
#     HADOOP_CONF_DIR=/etc/hadoop/conf deploy/yarn/submit.sh my_join.py hdfs:///checkpoints/prices
# SPARK_SUBMIT names another spark-submit; PYTHON the Python of the nodes.
set -euo pipefail
: "${HADOOP_CONF_DIR:?set it to the directory with the Hadoop settings of the cluster}"
archive=$(realpath "${ENVIRONMENT:-environment.zip}")
python=${PYTHON:-python3}
exec "${SPARK_SUBMIT:-spark-submit}" \
    --master yarn \
    --deploy-mode "${DEPLOY_MODE:-cluster}" \
    --name streamjoin \
    --archives "$archive#environment" \
    --num-executors "${EXECUTORS:-2}" \
    --executor-memory "${EXECUTOR_MEMORY:-4g}" \
    --executor-cores "${EXECUTOR_CORES:-2}" \
    --conf spark.yarn.appMasterEnv.PYSPARK_PYTHON="$python" \
    --conf spark.executorEnv.PYSPARK_PYTHON="$python" \
    --conf spark.yarn.appMasterEnv.PYTHONPATH=environment \
    --conf spark.executorEnv.PYTHONPATH=environment \
    --conf spark.python.daemon.module=streamjoin.spark.runtime.daemon \
    --conf spark.sql.execution.arrow.maxRecordsPerBatch=200000 \
    --conf spark.sql.session.timeZone=UTC \
    --conf spark.yarn.maxAppAttempts=4 \
    --conf spark.yarn.am.attemptFailuresValidityInterval=1h \
    "$@"
