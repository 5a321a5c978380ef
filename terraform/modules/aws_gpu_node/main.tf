# The adopted machine, as long as it exists. Once it is gone, nothing but its absence may follow from a plan.
data "aws_instances" "adopted" {
  count                = !var.autodl_available && var.adopted_instance_id != null ? 1 : 0
  instance_state_names = ["pending", "running", "shutting-down", "stopping", "stopped"]

  filter {
    name   = "instance-id"
    values = [coalesce(var.adopted_instance_id, "none")]
  }
}

resource "aws_instance" "gpu" {
  #checkov:skip=CKV_AWS_79:The launch template requires IMDSv2
  #checkov:skip=CKV_AWS_8:The launch template encrypts the disk
  #checkov:skip=CKV_AWS_126:Detailed monitoring is paid for; the node reports to the job's store
  #checkov:skip=CKV_AWS_135:GPU types are EBS-optimized by nature, and the flag is refused by others
  #checkov:skip=CKV2_AWS_41:The launch template attaches the role

  count         = var.autodl_available ? 0 : 1
  instance_type = var.instance_type
  subnet_id     = var.subnet_id
  user_data     = var.user_data
  tags          = var.tags

  launch_template {
    id      = var.launch_template_id
    version = var.launch_template_version
  }

  lifecycle {
    # A claimed machine differs from this block in many ways (market, image of its day, user data of its epoch): none
    # of them is a reason to replace a machine that trains.
    ignore_changes = all

    precondition {
      condition = var.create_by_terraform || try(
        contains(data.aws_instances.adopted[0].ids, var.adopted_instance_id), false
      )
      error_message = var.adopted_instance_id == null ? (
        "Terraform must not start this machine: set create_by_terraform = true, or let failover claim one."
        ) : (
        "The adopted machine ${coalesce(var.adopted_instance_id, "-")} is gone; Terraform must not buy another: set autodl_available = true."
      )
    }
  }
}
