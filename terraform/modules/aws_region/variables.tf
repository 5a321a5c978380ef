variable "name" {
  description = "Name of the job in this account, `<job>-<uid>`: prefix of everything the module makes."
  type        = string

  validation {
    condition     = can(regex("^[a-z]([a-z0-9-]{0,39}[a-z0-9])?$", var.name))
    error_message = "name must be 1 to 41 lower-case letters, digits or hyphens, and start with a letter."
  }
}

variable "region" {
  description = "Region of the provider, e.g. `us-east-1`."
  type        = string

  validation {
    condition     = can(regex("^[a-z]{2,3}(-[a-z]+)+-[0-9]+$", var.region))
    error_message = "region must look like us-east-1."
  }
}

variable "tags" {
  description = "Tags of everything the module makes, and of the machines and disks that the launch template starts."
  type        = map(string)
  default     = {}
}

variable "vpc" {
  description = "`default`: the region's default VPC. `own`: a VPC made here, with a public subnet in each zone."
  type        = string
  default     = "default"

  validation {
    condition     = contains(["default", "own"], var.vpc)
    error_message = "vpc must be \"default\" or \"own\"."
  }
}

variable "vpc_cidr" {
  description = "Address range of an own VPC; each zone gets a sixteenth of it."
  type        = string
  default     = "10.73.0.0/16"

  validation {
    condition     = can(cidrsubnet(var.vpc_cidr, 4, 15)) && can(regex("^[0-9.]+/(1[6-9]|2[0-4])$", var.vpc_cidr))
    error_message = "vpc_cidr must be an IPv4 range between /16 and /24."
  }
}

variable "zones" {
  description = "Zones to use; empty: all zones of the region that need no opt-in."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for zone in var.zones : can(regex("^[a-z]{2,3}(-[a-z]+)+-[0-9]+[a-p]$", zone))])
    error_message = "zones must look like us-east-1a."
  }
}

variable "ssh_cidr" {
  description = "Addresses that may reach port 22; null: nobody. Failover itself never connects to a machine."
  type        = string
  default     = null

  validation {
    condition     = var.ssh_cidr == null || can(cidrhost(coalesce(var.ssh_cidr, "!"), 0))
    error_message = "ssh_cidr must be a range of addresses such as 203.0.113.7/32."
  }

  validation {
    condition = (
      try(tonumber(split("/", coalesce(var.ssh_cidr, "x/32"))[1]), 0) >=
      (strcontains(coalesce(var.ssh_cidr, "-"), ":") ? 32 : 8)
    )
    error_message = "ssh_cidr must not open port 22 to the world: IPv4 at least /8, IPv6 at least /32."
  }
}

variable "key_name" {
  description = "EC2 key pair for SSH; null: none."
  type        = string
  default     = null
}

variable "bucket" {
  description = "Bucket that holds the job's store; null: the store is not in S3, and the machines get no role."
  type        = string
  default     = null

  validation {
    condition     = var.bucket == null || can(regex("^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", coalesce(var.bucket, "!")))
    error_message = "bucket must be the name of an S3 bucket."
  }
}

variable "prefix" {
  description = "The job's prefix in the bucket, without a slash at either end: all that the role can reach."
  type        = string
  default     = ""

  validation {
    condition     = !can(regex("[*?$]|^/|/$|//", var.prefix))
    error_message = "prefix must not contain *, ? or $ (they are wildcards in a policy), nor empty parts."
  }
}

variable "ami_id" {
  description = "Machine image; null: the one that `ami_ssm_parameter` names."
  type        = string
  default     = null

  validation {
    condition     = var.ami_id == null || can(regex("^ami-[0-9a-z]+$", coalesce(var.ami_id, "!")))
    error_message = "ami_id must look like ami-0123456789abcdef0."
  }
}

variable "ami_ssm_parameter" {
  description = <<-EOT
    Public SSM parameter that holds the id of an image with GPU driver and container engine. The default image has the
    open kernel modules, which start at Turing: V100 (p3) needs `ami_id` of an image with the proprietary driver.
  EOT
  type        = string
  default     = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"

  validation {
    condition     = can(regex("^/[A-Za-z0-9_./-]+$", var.ami_ssm_parameter))
    error_message = "ami_ssm_parameter must be the full name of an SSM parameter, starting with a slash."
  }
}

variable "disk_gb" {
  description = "Size of the encrypted gp3 root disk in GiB."
  type        = number
  default     = 100

  validation {
    condition     = var.disk_gb >= 8 && var.disk_gb <= 16384 && floor(var.disk_gb) == var.disk_gb
    error_message = "disk_gb must be a whole number from 8 to 16384."
  }
}

variable "spot" {
  description = "Spot setting of the launch template; null: the request says. Only a node made by Terraform needs it."
  type        = object({ max_price = optional(string) })
  default     = null
}
