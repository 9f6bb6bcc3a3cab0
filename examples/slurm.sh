#!/usr/bin/env bash
# Features of a contrast on several nodes, one process a GPU. Submit it with:  sbatch examples/slurm.sh
# A job that is cut off or preempted goes on where it was: submit it again, also with another number of nodes.
#SBATCH --job-name=qkprism
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=08:00:00
#SBATCH --requeue
set -euo pipefail

MODEL=${MODEL:-meta-llama/Llama-3.1-8B-Instruct}
CONTRAST=${CONTRAST:-prompts.jsonl}
SAVE=${SAVE:-runs/slurm} # on a file system that all nodes see

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node "${SLURM_GPUS_ON_NODE:-8}" \
  --rdzv-backend c10d --rdzv-endpoint "$first:29500" --rdzv-id "$SLURM_JOB_ID" \
  -m qkprism -- decompose "$CONTRAST" --model "$MODEL" --dtype bfloat16 --save "$SAVE"
