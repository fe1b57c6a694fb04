"""The tables that have a command, and the columns that it shows."""

DEFAULT_COLUMNS = {
    "tasks": "task_id,attempt_number,name,state,start_time_ms,end_time_ms,error_message",
    "actors": "actor_id,class_name,name,state,job_id,pid,num_restarts",
    "jobs": "submission_id,job_id,status,start_time,end_time,entrypoint",
    "nodes": "node_id,node_ip,is_head,state,start_time_ms,end_time_ms",
    "workers": "worker_id,worker_type,pid,is_alive,exit_type,start_time_ms,end_time_ms",
    "placement_groups": "placement_group_id,name,state,is_detached,creator_job_id",
}
"""The tables that have a command, and the columns of their text output."""
