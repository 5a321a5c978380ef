variable "autodl_available" {
  description = "True while the job has a card at AutoDL: then there is no machine here."
  type        = bool
}

variable "create_by_terraform" {
  description = "True lets `terraform apply` start the machine. False: only failover's claim starts one."
  type        = bool
  default     = false
}

variable "adopted_instance_id" {
  description = "Machine that was claimed and is adopted with an `import` block; null: none."
  type        = string
  default     = null

  validation {
    condition     = var.adopted_instance_id == null || can(regex("^i-[0-9a-f]+$", coalesce(var.adopted_instance_id, "!")))
    error_message = "adopted_instance_id must look like i-0123456789abcdef0."
  }
}

variable "launch_template_id" {
  description = "Launch template of the region module."
  type        = string
}

variable "launch_template_version" {
  description = "Version of the launch template."
  type        = string
  default     = "$Latest"
}

variable "instance_type" {
  description = "Instance type, e.g. `g4dn.xlarge`; only read when Terraform starts the machine."
  type        = string
  default     = null
}

variable "subnet_id" {
  description = "Subnet of the wanted zone; only read when Terraform starts the machine."
  type        = string
  default     = null
}

variable "user_data" {
  description = "Start script; only read when Terraform starts the machine. It may hold one short-lived link, no secret."
  type        = string
  default     = null
  sensitive   = true
}

variable "tags" {
  description = "Tags of a machine that Terraform starts."
  type        = map(string)
  default     = {}
}
