#!/bin/sh
# Stands for cairn-trainer in tests of the agent: shows what it was given, then does as MODE says.
IFS= read -r token <&3
exec 3<&-
echo "arguments $*"
echo "token $token threads $OMP_NUM_THREADS"
echo "variables $(env | sed 's/=.*//' | sort | tr '\n' ' ')"
echo "gpus [$CUDA_VISIBLE_DEVICES]"
echo "nccl [$NCCL_SOCKET_IFNAME $NCCL_SOCKET_FAMILY]"
echo "descriptors $(ls /proc/self/fd | tr '\n' ' ')"
case "$MODE" in
exit7) echo "goodbye" >&2; exit 7 ;;
segv) kill -SEGV $$ ;;
stubborn) trap '' TERM; echo "won't go" ;;
orphan) sleep 1000 & echo "child $!"; exit 0 ;;
esac
echo "holding"
while :; do sleep 0.2; done
